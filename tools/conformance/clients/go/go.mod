module conformance/client

go 1.25
