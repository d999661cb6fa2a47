package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/kernlb/kernlb/examples/userspace/proxy"
	"github.com/kernlb/kernlb/servicemodel"
)

// options are what the flags say.
type options struct {
	paths       []string
	demo        bool
	node        string
	annotations string
	connections servicemodel.ConnectionPolicy
	interval    time.Duration
	drain       time.Duration
	handover    string
	proxy       proxy.Config

	headers map[string]proxy.Header // by service, "" for all others
}

// parse reads the flags. Errors name the flag. If help is asked for, it writes that and returns
// [flag.ErrHelp].
func parse(args []string, help io.Writer) (*options, error) {
	o := &options{headers: map[string]proxy.Header{}}
	f := flag.NewFlagSet("userspace", flag.ContinueOnError)
	f.SetOutput(io.Discard) // the error says it
	o.define(f)
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			f.SetOutput(help)
			f.PrintDefaults()
		}
		return nil, err
	}
	o.proxy.Header = o.header
	return o, o.check(f.Args())
}

// define defines the flags.
func (o *options) define(f *flag.FlagSet) {
	f.Func("f", "manifest, or directory of manifests (.yaml, .yml, .json); may be repeated",
		func(s string) error { o.paths = append(o.paths, s); return nil })
	f.Func("map", "where an address of a service or endpoint is on this host, such as "+
		"10.96.0.10:80=127.0.0.1:8080, 10.244.0.0/16=127.0.0.1 or 10.96.0.0/12=none; may be "+
		"repeated, the first that fits counts", o.addRule)
	f.Func("proxy-protocol", "header that endpoints are sent: none, v1 or v2, for all services or "+
		"one, such as v2=default/web; may be repeated", o.addHeader)
	f.Func("connections", "what becomes of connections to endpoints that go: leave, cut, or how "+
		"long they are drained, such as 30s (default leave)", func(s string) (err error) {
		o.connections, err = servicemodel.ParseConnectionPolicy(s)
		return err
	})
	f.BoolVar(&o.demo, "demo", false, "serve a demonstration at 127.0.0.1:8080")
	f.StringVar(&o.node, "node", "", "name of this node, for traffic policy Local and hints")
	f.StringVar(&o.annotations, "annotations", "kernlb.io", "prefix of annotations that say "+
		"schedulers, weights and policies for connections")
	f.DurationVar(&o.interval, "interval", time.Second, "time between two looks at the files")
	f.DurationVar(&o.drain, "drain", 10*time.Second, "how long connections may go on at the end")
	f.StringVar(&o.handover, "handover", "", "`path` of a Unix socket, in a directory that nobody "+
		"else can write to: a process with the same path that is started later takes over the "+
		"sockets of this one")
	c := &o.proxy
	f.DurationVar(&c.ConnectTimeout, "connect-timeout", proxy.DefaultConnectTimeout,
		"how long an endpoint may take to accept a connection, until another is asked")
	f.DurationVar(&c.IdleTimeout, "idle-timeout", proxy.DefaultIdleTimeout,
		"after what silence a connection is reset")
	f.DurationVar(&c.UDPTimeout, "udp-timeout", proxy.DefaultUDPTimeout,
		"after what silence a UDP flow is forgotten")
	f.IntVar(&c.MaxConnections, "max-connections", proxy.DefaultMaxConnections,
		"TCP connections at a time; others wait")
	f.IntVar(&c.MaxFlows, "max-flows", proxy.DefaultMaxFlows, "UDP flows at a time")
}

func (o *options) check(rest []string) error {
	switch {
	case len(rest) > 0:
		return fmt.Errorf("%q is no flag: manifests are given with -f", rest[0])
	case len(o.paths) == 0 && !o.demo:
		return errors.New("-f: no manifest is given; -demo serves one")
	case len(o.paths) > 0 && o.demo:
		return errors.New("-demo: it brings its own manifest, leave out -f")
	case o.interval <= 0:
		return fmt.Errorf("-interval: %v: must be positive", o.interval)
	case o.drain < 0:
		return fmt.Errorf("-drain: %v: must not be negative", o.drain)
	case o.handover != "" && !passesSockets:
		return errors.New("-handover: this system passes no sockets between processes")
	}
	return nil
}

func (o *options) addRule(s string) error {
	r, err := proxy.ParseRule(s)
	o.proxy.Map = append(o.proxy.Map, r)
	return err
}

func (o *options) addHeader(s string) error {
	version, service, _ := strings.Cut(s, "=")
	h, err := proxy.ParseHeader(version)
	o.headers[service] = h
	return err
}

// header is the [proxy.Config.Header].
func (o *options) header(n servicemodel.PortName) proxy.Header {
	if h, ok := o.headers[n.Name.String()]; ok {
		return h
	}
	return o.headers[""]
}
