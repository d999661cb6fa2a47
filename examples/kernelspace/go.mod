module github.com/kernlb/kernlb/examples/kernelspace

go 1.26.0

require (
	github.com/Microsoft/hnslib v0.1.3
	github.com/kernlb/kernlb v0.1.0
	github.com/stretchr/testify v1.12.1
	golang.org/x/sys v0.49.0
)

require (
	github.com/Microsoft/go-winio v0.6.2 // indirect
	github.com/sirupsen/logrus v1.9.3 // indirect
	go.yaml.in/yaml/v3 v3.0.5 // indirect
)

replace github.com/kernlb/kernlb => ../..
