package main

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kernlb/kernlb/internal/test/growth"
)

// growing are configurations in which ITEMS stands for a list of any length. Its items have a
// number for %d.
var growing = map[string]struct{ text, item string }{
	"ports": {`{"runtimeConfig":{"portMappings":[ITEMS]},"prevResult":{"cniVersion":"1.1.0",` +
		`"ips":[{"address":"10.88.0.2/16"}]}}`, `{"hostPort":%d,"containerPort":80}`},
	"ports that are taken": {`{"runtimeConfig":{"portMappings":[ITEMS]}}`,
		`{"hostPort":80,"containerPort":%d}`},
	"wrong ports":    {`{"runtimeConfig":{"portMappings":[ITEMS]}}`, `{"hostPort":0}`},
	"unknown fields": {`{ITEMS}`, `"f%d":1`},
	"conditions":     {`{"conditionsV4":[ITEMS]}`, `"-d"`},
	"addresses": {`{"prevResult":{"cniVersion":"1.1.0","ips":[ITEMS]}}`,
		`{"address":"10.88.0.2/16"}`},
	"nothings": {`{"prevResult":{"cniVersion":"1.1.0","ips":[ITEMS]}}`, `null`},
}

func TestTimeAndMemoryGrowAsConfigurationsDo(t *testing.T) {
	for name, tt := range growing {
		t.Run(name, func(t *testing.T) {
			growth.Linear(t, 1<<16, func(n int) []byte {
				items := make([]string, n)
				for i := range items {
					items[i] = strings.ReplaceAll(tt.item, "%d", fmt.Sprint(1+i%65535))
				}
				text := strings.Replace(tt.text, "ITEMS", strings.Join(items, ","), 1)
				return []byte(strings.Replace(text, "{", `{"cniVersion":"1.1.0",`, 1))
			}, func(text []byte) {
				if conf, err := parse(text, "eth0"); err == nil {
					conf.state("net,c,eth0")
				}
			})
		})
	}
}
