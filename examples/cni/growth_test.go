package main

import (
	"testing"

	"github.com/kernlb/kernlb/internal/test/growth"
)

const prev = `{"cniVersion":"1.1.0","prevResult":{"cniVersion":"1.1.0","ips":[`

var growing = map[string]string{
	"ports": prev + `{"address":"10.88.0.2/16"}]},"runtimeConfig":{"portMappings":[` +
		`«{"hostPort":%d,"containerPort":80},»{"hostPort":65535,"containerPort":80}]}}`,
	"ports that are taken": `{"runtimeConfig":{"portMappings":[` +
		`«{"hostPort":80,"containerPort":%d},»{"hostPort":80,"containerPort":80}]}}`,
	"wrong ports":    `{"runtimeConfig":{"portMappings":[«{"hostPort":0},»{}]}}`,
	"unknown fields": `{«"f%d":1,»"f":1}`,
	"conditions":     `{"conditionsV4":[«"-d",»"-d"]}`,
	"addresses":      prev + `«{"address":"10.88.0.2/16"},»{"address":"10.88.0.2/16"}]}}`,
	"nothings":       prev + `«null,»null]}}`,
}

func TestTimeAndMemoryGrowAsConfigurationsDo(t *testing.T) {
	growth.Texts(t, 1<<15, growing, func(text string) {
		if conf, err := parse([]byte(text), "eth0"); err == nil {
			conf.state("net,c,eth0")
		}
	})
}
