package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"time"

	"github.com/kernlb/kernlb/examples/userspace/proxy"
	"github.com/kernlb/kernlb/servicemodel"
)

// options are the values of the flags.
type options struct {
	paths       []string
	node        string
	annotations string
	connections servicemodel.ConnectionPolicy
	interval    time.Duration
	drain       time.Duration
	proxy       proxy.Config

	headers map[string]bool // services, or "all"
}

// parse parses the flags. Errors name the flag. If the user asks for help, parse writes it and
// returns [flag.ErrHelp].
func parse(args []string, help io.Writer) (*options, error) {
	o := &options{headers: map[string]bool{}}
	f := flag.NewFlagSet("userspace", flag.ContinueOnError)
	f.SetOutput(io.Discard) // the returned error is enough
	o.define(f)
	if err := f.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			fmt.Fprint(help, "usage: userspace -f FILE [flags]\n       userspace version\n\n"+
				"example:\n  userspace -f web.yaml -map 10.96.0.10:80=127.0.0.1:8080\n\nflags:\n")
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
		"repeated, the first that fits counts", func(s string) error {
		r, err := proxy.ParseRule(s)
		o.proxy.Map = append(o.proxy.Map, r)
		return err
	})
	f.Func("proxy-protocol", "service whose endpoints are sent a header of the PROXY protocol, "+
		"version 2, such as default/web, or all; may be repeated",
		func(s string) error { o.headers[s] = true; return nil })
	f.Func("connections", "what becomes of connections to endpoints that go: leave, cut, or how "+
		"long they are drained, such as 30s (default leave)", func(s string) (err error) {
		o.connections, err = servicemodel.ParseConnectionPolicy(s)
		return err
	})
	f.StringVar(&o.node, "node", "", "name of this node, for traffic policy Local and hints")
	f.StringVar(&o.annotations, "annotations", "kernlb.io", "prefix of annotations that say "+
		"schedulers, weights and policies for connections")
	f.DurationVar(&o.interval, "interval", time.Second, "time between two looks at the files")
	f.DurationVar(&o.drain, "drain", 10*time.Second, "how long connections may go on at the end")
	c := &o.proxy
	f.DurationVar(&c.ConnectTimeout, "connect-timeout", proxy.DefaultConnectTimeout,
		"how long an endpoint may take to accept a connection, until another is asked")
	f.DurationVar(&c.IdleTimeout, "idle-timeout", proxy.DefaultIdleTimeout,
		"after what silence a connection is reset")
	f.DurationVar(&c.UDPTimeout, "udp-timeout", proxy.DefaultUDPTimeout,
		"after what silence a UDP flow is forgotten; a quarter of it until it was answered twice")
	f.IntVar(&c.MaxConnections, "max-connections", proxy.DefaultMaxConnections,
		"TCP connections at a time; others wait")
	f.IntVar(&c.MaxFlows, "max-flows", proxy.DefaultMaxFlows, "UDP flows at a time; "+
		"a new one ends one of the service that has most")
}

func (o *options) check(rest []string) error {
	switch {
	case len(rest) > 0 || len(o.paths) == 0:
		return errors.New("give manifests with -f")
	case o.interval <= 0:
		return fmt.Errorf("-interval: %v: must be positive", o.interval)
	case o.drain < 0:
		return fmt.Errorf("-drain: %v: must not be negative", o.drain)
	}
	return nil
}

// header is [proxy.Config.Header] according to the flags.
func (o *options) header(n servicemodel.Name) bool {
	return o.headers["all"] || o.headers[n.String()]
}
