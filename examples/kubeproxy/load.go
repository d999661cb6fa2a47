package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"reflect"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	yamlv3 "go.yaml.in/yaml/v3"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	logsapi "k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"

	"github.com/kernlb/kernlb/examples/command/suggest"
)

// config is a KubeProxyConfiguration of kubeproxy.config.k8s.io/v1alpha1.
type config = v1alpha1.KubeProxyConfiguration

const (
	apiVersion = "kubeproxy.config.k8s.io/v1alpha1"
	kind       = "KubeProxyConfiguration"

	modeIPTables = v1alpha1.ProxyMode("iptables")
	modeNFTables = v1alpha1.ProxyMode("nftables")
	modeIPVS     = v1alpha1.ProxyMode("ipvs")
	modeKernel   = v1alpha1.ProxyMode("kernelspace") // on Windows

	localClusterCIDR = v1alpha1.LocalMode("ClusterCIDR")
	localNodeCIDR    = v1alpha1.LocalMode("NodeCIDR")
	localBridge      = v1alpha1.LocalMode("BridgeInterface")
	localPrefix      = v1alpha1.LocalMode("InterfaceNamePrefix")

	healthzPort = 10256
	metricsPort = 10249
)

// The default minimum time between two syncs follows from the time of a sync with 10,000 services:
// 0.2 ms on nftables, 57 ms on iptables. Kube-proxy's default is a second.
const (
	minSyncNFTables = 10 * time.Millisecond
	minSyncIPTables = 200 * time.Millisecond
)

// setDefaults sets missing fields to kube-proxy's defaults
// (pkg/proxy/apis/config/v1alpha1/defaults.go in Kubernetes 1.36), except minSyncPeriod.
// [setModeDefaults] sets the fields that depend on the mode.
func setDefaults(c *config) {
	c.APIVersion, c.Kind = apiVersion, kind
	fill(&c.BindAddress, "0.0.0.0")
	all, local := "0.0.0.0", "127.0.0.1"
	if a, err := netip.ParseAddr(c.BindAddress); err == nil && a.Is6() {
		all, local = "::", "::1"
	}
	fill(&c.HealthzBindAddress, all)
	fill(&c.MetricsBindAddress, local)
	c.HealthzBindAddress = withPort(c.HealthzBindAddress, healthzPort)
	c.MetricsBindAddress = withPort(c.MetricsBindAddress, metricsPort)
	fill(&c.OOMScoreAdj, new(int32(-999)))
	fill(&c.IPTables.SyncPeriod.Duration, 30*time.Second)
	fill(&c.IPTables.MinSyncPeriod.Duration, minSyncIPTables)
	fill(&c.IPTables.LocalhostNodePorts, new(true))
	fill(&c.IPTables.MasqueradeBit, new(int32(14)))
	fill(&c.IPVS.SyncPeriod.Duration, 30*time.Second)
	fill(&c.NFTables.SyncPeriod.Duration, 30*time.Second)
	fill(&c.NFTables.MinSyncPeriod.Duration, minSyncNFTables)
	fill(&c.NFTables.MasqueradeBit, new(int32(14)))
	fill(&c.Conntrack.MaxPerCore, new(int32(32*1024)))
	fill(&c.Conntrack.Min, new(int32(128*1024)))
	fill(&c.Conntrack.TCPEstablishedTimeout, &metav1.Duration{Duration: 24 * time.Hour})
	fill(&c.Conntrack.TCPCloseWaitTimeout, &metav1.Duration{Duration: time.Hour})
	fill(&c.ConfigSyncPeriod.Duration, 15*time.Minute)
	fill(&c.ClientConnection.ContentType, "application/vnd.kubernetes.protobuf")
	fill(&c.ClientConnection.QPS, 5)
	fill(&c.ClientConnection.Burst, 10)
	if c.FeatureGates == nil {
		c.FeatureGates = map[string]bool{}
	}
	logsapi.SetRecommendedLoggingConfiguration(&c.Logging)
}

// setModeDefaults sets missing fields whose default depends on the mode (platformApplyDefaults in
// cmd/kube-proxy/app/server_linux.go and server_windows.go). The flags and the file must be known
// by then.
func setModeDefaults(c *config) {
	fill(&c.Mode, modes()[0])
	if c.Mode == modeKernel {
		fill(&c.Winkernel.RootHnsEndpointName, "cbr0")
	}
	if c.Mode == modeNFTables && len(c.NodePortAddresses) == 0 {
		c.NodePortAddresses = []string{"primary"}
	}
	fill(&c.DetectLocalMode, localClusterCIDR)
}

// fill sets a field that is zero.
func fill[T comparable](field *T, value T) {
	var zero T
	if *field == zero {
		*field = value
	}
}

// withPort appends the port to an address without one. It returns any other text unchanged, because
// the check of the field reports it.
func withPort(address string, port uint16) string {
	a, err := netip.ParseAddr(strings.Trim(address, "[]"))
	if err != nil {
		return address
	}
	return netip.AddrPortFrom(a, port).String()
}

// document is a configuration file, with the lines of its fields.
type document struct {
	name string
	text []byte
	root *yamlv3.Node
	// dropped are warnings about fields that kube-proxy no longer has.
	dropped []string
}

// fileError is an error at a place in a file. Line 0 means that the line is not known.
type fileError struct {
	file string
	line int
	err  error
}

func (e *fileError) Error() string {
	if e.line == 0 {
		return fmt.Sprintf("%s: %v", e.file, e.err)
	}
	return fmt.Sprintf("%s:%d: %v", e.file, e.line, e.err)
}

func (e *fileError) Unwrap() error { return e.err }

// readDocument reads a file of one YAML document, or JSON.
func readDocument(name string) (*document, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	d := &document{name: name, text: text, root: &yamlv3.Node{}}
	in := yamlv3.NewDecoder(bytes.NewReader(text))
	if err := in.Decode(d.root); errors.Is(err, io.EOF) {
		return nil, &fileError{name, 1, errors.New("the file is empty")}
	} else if err != nil {
		return nil, d.inLine(err)
	}

	for more := (&yamlv3.Node{}); in.Decode(more) == nil; {
		if more.Content[0].Tag != "!!null" { // nothing may follow a last ---
			return nil, &fileError{name, more.Line, errors.New("a second document: want one")}
		}
	}

	return d, nil
}

// yamlLine matches the line in errors of the YAML decoders.
var yamlLine = regexp.MustCompile(`\bline (\d+): `)

// inLine moves the line in a decoder's error to the front.
func (d *document) inLine(err error) error {
	text, line := err.Error(), 0
	if m := yamlLine.FindStringSubmatchIndex(text); m != nil {
		line, _ = strconv.Atoi(text[m[2]:m[3]])
		text = text[m[1]:]
	}

	return &fileError{d.name, line, errors.New(strings.TrimPrefix(text, "yaml: "))}
}

// decode decodes the configuration strictly: an unknown or repeated field is an error, and is not
// ignored. A field that kube-proxy had and dropped is a warning.
func (d *document) decode() (*config, error) {
	text, err := yaml.YAMLToJSONStrict(d.text)
	if err != nil {
		return nil, d.inLine(err)
	}
	if line, version := d.find("apiVersion"); version != nil && version.Value != apiVersion &&
		strings.HasPrefix(version.Value, "kubeproxy.config.k8s.io/") { // its fields are others
		return nil, &fileError{d.name, line, &valueError{"apiVersion",
			fmt.Errorf("%q: want %s", version.Value, apiVersion)}}
	}
	c := &config{}
	if err := d.durations(c); err != nil {
		return nil, err
	}
	strict, err := json.UnmarshalStrict(text, c)
	if err != nil {
		strict = append(strict, err)
	}
	var errs []error
	for _, err := range strict {
		if err := d.undecoded(err); err != nil {
			errs = append(errs, err)
		}
	}

	return c, errors.Join(errs...)
}

// durations finds invalid durations, because the decoder does not name their fields.
func (d *document) durations(c *config) error {
	var errs []error
	for _, f := range fields {
		line, node := d.find(f.field)
		if f.field == "" || node == nil || node.Tag == "!!int" || node.Tag == "!!null" {
			continue
		}
		switch fieldAt(c, f.field).Type() {
		case reflect.TypeFor[metav1.Duration](), reflect.TypeFor[*metav1.Duration](),
			reflect.TypeFor[logsapi.TimeOrMetaDuration]():
		default:
			continue
		}

		if _, err := time.ParseDuration(node.Value); err != nil {
			errs = append(errs, &fileError{d.name, line, &valueError{f.field,
				fmt.Errorf("%q: must be a time such as 30s", node.Value)}})
		}
	}

	return errors.Join(errs...)
}

// The decoder's texts about fields: unknown field "iptables.bit", and of type metav1.Duration in Go
// struct field KubeProxyConfiguration.iptables.syncPeriod.
var (
	unknownField = regexp.MustCompile(`unknown field "([^"]+)"`)
	goField      = regexp.MustCompile(`Go struct field (?:\w+\.)?([\w.]+) of type`)
)

// undecoded adds the place where the decoder stopped to an error. It returns nil for a dropped
// field.
func (d *document) undecoded(err error) error {
	text := strings.TrimPrefix(err.Error(), "json: ")
	if m := unknownField.FindStringSubmatch(text); m != nil {
		e := &fileError{d.name, d.line(m[1]), nil}
		if why, known := dropped[m[1]]; known {
			e.err = errors.New(m[1] + " has no effect: " + why)
			d.dropped = append(d.dropped, e.Error())
			return nil
		}

		e.err = &valueError{m[1], errors.New("no such field" + meant(m[1]))}
		return e
	}

	if m := goField.FindStringSubmatch(text); m != nil {
		return &fileError{d.name, d.line(m[1]), &valueError{m[1], errors.New(expected(m[1]))}}
	}
	return d.inLine(errors.New(text))
}

// expected describes the form of a field's value. A path without a field is a section.
func expected(path string) string {
	if !slices.ContainsFunc(fields, func(f field) bool { return f.field == path }) {
		return "must have fields"
	}
	t := fieldAt(&config{}, path).Type()
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	switch t.Kind() {
	case reflect.Uint32:
		return "must be a number, 0 or more"
	case reflect.Int32, reflect.Float32:
		return "must be a number"
	case reflect.Bool:
		return "must be true or false"
	case reflect.String:
		return "must be text"
	case reflect.Slice:
		return "must be a list"
	case reflect.Map:
		return "must have fields that are true or false"
	}
	return "must be a time such as 30s"
}

// meant suggests the most similar field, or a field of the same name elsewhere.
func meant(path string) string {
	all := func(yield func(string) bool) {
		for i := range fields {
			if fields[i].field != "" && !yield(fields[i].field) {
				return
			}
		}
	}

	near, found := suggest.Nearest(path, slices.Collect(all))
	if last := path[strings.LastIndex(path, ".")+1:]; !found {
		for f := range all {
			if found = strings.HasSuffix("."+f, "."+last); found {
				near = f
				break
			}
		}
	}

	if !found {
		return ""
	}
	return "; did you mean " + near + "?"
}

// line returns the line of a field, or of the nearest field around it, or 0.
func (d *document) line(path string) int {
	line, _ := d.find(path)
	return line
}

// find returns the line of a field and its value. If the file does not have it, find returns the
// line of the nearest field around it, and no value.
func (d *document) find(path string) (line int, node *yamlv3.Node) {
	if len(d.root.Content) == 0 {
		return 0, nil
	}
	node = d.root.Content[0]
	for name := range strings.SplitSeq(path, ".") {
		name, _, _ = strings.Cut(name, "[")
		var value *yamlv3.Node
		for i := 0; i+1 < len(node.Content) && node.Kind == yamlv3.MappingNode; i += 2 {
			if node.Content[i].Value == name {
				line, value = node.Content[i].Line, node.Content[i+1]
			}
		}

		if node = value; node == nil {
			break
		}
	}

	return line, node
}
