package keepalived_test

import (
	"testing"

	"github.com/kernlb/kernlb/examples/loadbalancer/keepalived"
	"github.com/kernlb/kernlb/internal/test/growth"
)

const (
	virtual = "virtual_server 192.0.2.1 80 {\n"
	real    = "real_server 10.0.0.1 80 {\n"
	group   = "virtual_server_group g {\n"
	ofGroup = "virtual_server group g {\n}\n"
)

var growing = map[string]string{
	"virtual servers":    "«" + virtual + real + "}\n}\n»",
	"real servers":       virtual + "«" + real + "}\n»}\n",
	"checks":             virtual + real + "«TCP_CHECK {\n}\n»}\n}\n",
	"urls":               virtual + real + "HTTP_GET {\n«url {\npath /\n}\n»}\n}\n}\n",
	"unknown keywords":   virtual + "«nothing\n»}\n",
	"warnings":           virtual + "«omega\n»}\n",
	"members of a group": group + "«192.0.2.1 80\n»}\n" + ofGroup,
	"a long range":       group + "«192.0.2.1-250 80\n»}\n" + ofGroup,
	"words":              "«word »",
	"blocks":             "«a {\n»",
	"quotes":             "«\"a\"»",
	"parameters":         "«$A=1\n»",
	"values":             "$A=omega\n" + virtual + "«$A\n»}\n",
	"values in a line":   "$A=a\n«$A »\n",
	"unknown parameters": "«$B »\n",
	"lines of a value":   "$A= \\\n«omega \\\n»\n" + virtual + "$A\n}\n",
}

func TestTimeAndMemoryGrowAsConfigurationsDo(t *testing.T) {
	growth.Texts(t, 1<<15, growing, func(text string) {
		_, _ = keepalived.Convert("keepalived.conf", text, nil)
	})
}
