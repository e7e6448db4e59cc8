module probe

go 1.25.0

require github.com/parquet-go/parquet-go v0.32.0
