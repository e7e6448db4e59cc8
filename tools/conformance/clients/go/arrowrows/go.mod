module conformance/arrowrows

go 1.25.0

require (
	conformance/client v0.0.0
	github.com/apache/arrow-go/v18 v18.8.0
)

replace conformance/client => ../
