package manifest_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/kernlb/kernlb/internal/test/growth"
	"github.com/kernlb/kernlb/servicemodel/kube"
	"github.com/kernlb/kernlb/servicemodel/kube/manifest"
)

// many returns n items with commas between them. %d in an item is its number.
func many(n int, item string) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strings.ReplaceAll(item, "%d", fmt.Sprint(i)))
	}

	return b.String()
}

// growing are texts that grow to any length, with valid or invalid items in the place of ITEMS.
var growing = []struct{ name, text, item string }{
	{"addresses", endpointsOf("ITEMS", `{"port":80}`), `{"ip":"10.0.0.1"}`},
	{"wrong addresses", endpointsOf("ITEMS", `{"port":80}`), `{"ip":"x"}`},
	{"unknown fields", endpointsOf("ITEMS", `{"port":80}`), `{"pi":"10.0.0.1"}`},
	{"wrong ports", endpointsOf(`{"ip":"10.0.0.1"}`, "ITEMS"), `{"port":0,"name":"p"}`},
	{"ports", serviceOf(`"ports":[ITEMS]`), `{"name":"p%d","port":80}`},
	{"wrong names", serviceOf(`"ports":[{"port":80}],"externalIPs":[ITEMS]`), `"x%d"`},
	{"selectors", serviceOf(`"ports":[{"port":80}],"selector":{ITEMS}`), `"a%d b":"!"`},
	{"fields that are not there", serviceOf(`ITEMS`), `"f%d":1`},
	{"fields given twice", serviceOf(`ITEMS`), `"f":1`},
	{"slice", `{"apiVersion":"discovery.k8s.io/v1","kind":"EndpointSlice","metadata":{"name":` +
		`"web-1","labels":{"kubernetes.io/service-name":"web"}},"addressType":"IPv4","ports":` +
		`[{"name":"","port":80}],"endpoints":[ITEMS]}`, `{"addresses":["x","x"]}`},
	{"misspelt kinds", `{"apiVersion":"v1","kind":"List","items":[ITEMS]}`,
		`{"apiVersion":"v1","kind":"Sevice%d"}`},
	{"slices of services that are not there", `{"apiVersion":"v1","kind":"List","items":[ITEMS]}`,
		`{"apiVersion":"v1","kind":"Service","metadata":{"name":"web-%d"},"spec":{"clusterIP":` +
			`"10.0.0.1","ports":[{"port":80}]}},{"apiVersion":"v1","kind":"Endpoints","metadata":` +
			`{"name":"wbe-%d"},"subsets":[{"ports":[{"port":80}],` +
			`"addresses":[{"ip":"10.0.0.1"}]}]}`},
	{"ports of no service", `{"apiVersion":"v1","kind":"List","items":[` +
		serviceOf(`"ports":[{"port":80}]`) + "," + endpointsOf(`{"ip":"10.0.0.1"}`, "ITEMS") + `]}`,
		`{"port":80,"name":"p%d"}`},
	{"brackets", `{"a":ITEMS`, `["`},
	{"YAML in flow style", `{a: [ITEMS]}`, `{b: c, d: "e"}`},
	{"aliases", `{a: &a [x], b: [ITEMS]}`, `*a`},
	{"anchors", `{a: [ITEMS]}`, `&a%d x`},
	{"tags", `{a: [ITEMS]}`, `!!str x`},
	{"one long text", `{a: 'ITEMS'}`, `xxxx`},
	{"quotation marks", `{a: ITEMS}`, `"\"\n`},
	{"documents", `ITEMS`, "\n---\n# %d"},
	{"comments", `ITEMS`, "\n# %d"},
	{"blocks", `ITEMS`, "\n- a: b\n  # c\n  d: |\n    e\n#"},
}

func endpointsOf(addresses, ports string) string {
	return `{"apiVersion":"v1","kind":"Endpoints","metadata":{"name":"web"},"subsets":[{"ports":[` +
		ports + `],"addresses":[` + addresses + `]}]}`
}

func serviceOf(spec string) string {
	return `{"apiVersion":"v1","kind":"Service","metadata":{"name":"web"},"spec":{"clusterIP":` +
		`"10.0.0.1",` + spec + `}}`
}

func TestTimeAndMemoryGrowAsTextsDo(t *testing.T) {
	for _, tt := range growing {
		t.Run(tt.name, func(t *testing.T) {
			growth.Linear(t, 1<<17, func(n int) string {
				return strings.Replace(tt.text, "ITEMS", many(n, tt.item), 1)
			}, func(text string) {
				set := manifest.NewSet(&kube.Config{Strict: true})
				for _, name := range []string{"a.yaml", "b.yaml"} {
					if _, err := set.Put(name, strings.NewReader(text)); err != nil {
						t.Error(err)
					}
				}

				set.Unmatched()
				set.Tracker().State()
			})
		})
	}
}

// A directory of many files costs as much as the objects in them.
func TestTimeAndMemoryGrowAsFilesDo(t *testing.T) {
	growth.Linear(t, 1<<13, func(n int) (texts []string) {
		for i := range n {
			texts = append(texts, strings.ReplaceAll(serviceOf(`"ports":[{"port":80}]`), "web",
				fmt.Sprint("web", i)))
		}

		return texts
	}, func(texts []string) {
		set := manifest.NewSet(&kube.Config{Strict: true})
		for i, text := range texts {
			if _, err := set.Put(fmt.Sprint(i), strings.NewReader(text)); err != nil {
				t.Error(err)
			}
		}
	})
}
