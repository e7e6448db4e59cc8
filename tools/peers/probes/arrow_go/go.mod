module probe

go 1.25.0

require github.com/apache/arrow-go/v18 v18.8.0
