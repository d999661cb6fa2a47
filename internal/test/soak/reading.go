package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"runtime"
	"time"

	"github.com/kernlb/kernlb/internal/test/busywriter"
)

// reading has the figures at one moment, by the names of columns.
type reading map[string]float64

// column is a figure of a reading.
type column struct {
	name string
	// part and more limit how much the figure may grow from the first third of the readings to the
	// last: by this part of it, plus this amount. If they are negative, any growth is allowed,
	// because the figure depends on the machine or on the traffic.
	part, more float64
}

var columns = []column{
	{"heap MB", 0.2, 1}, {"RSS MB", 0.2, 10}, {"goroutines", 0, 1}, {"descriptors", 0, 3},
	// Sets for numbers of slots stay until rules are written for another reason, so their number
	// varies. The tool iptables makes tables when it lists them.
	{"tables", 0, 2}, {"chains", 0.2, 0}, {"rules", 0.2, 0}, {"sets", 0.2, 0},
	// The version of an instance of nftables has 1 to 127.
	{"elements", 0, 127},
	{"servers", 0, 0}, {"dests", 0, 0}, {"policies", 0, 0},
	{"conntrack", -1, 0}, {"slab MB", -1, 0},
}

// measure reads at the interval, with the services that the soak began with, until ctx ends.
func (s *soaking) measure(ctx context.Context) error {
	interval := s.o.interval
	if interval == 0 {
		interval = s.o.duration / 40
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	start := time.Now()
	fmt.Printf("%8s", "after")
	for _, c := range columns {
		fmt.Printf(" %12s", c.name)
	}
	fmt.Println()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		r, err := s.read(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return fmt.Errorf("measure: %w", err)
		}
		s.readings = append(s.readings, r)
		fmt.Printf("%8s", time.Since(start).Round(time.Second))
		for _, c := range columns {
			fmt.Printf(" %12.1f", r[c.name])
		}
		fmt.Println()
	}
}

// read makes one reading. No vandal and no writer runs at that moment, because the reading would
// count their objects.
func (s *soaking) read(ctx context.Context) (reading, error) {
	s.turn.Lock()
	defer s.turn.Unlock()
	s.others.Lock()
	defer s.others.Unlock()
	r := reading{}
	s.engine.Resync()
	if _, err := s.engine.Apply(ctx, s.base); err != nil {
		return nil, err
	}
	if err := s.withoutNeighbour(ctx, func() error { return s.countObjects(r) }); err != nil {
		return nil, err
	}
	if err := s.countServers(r); err != nil {
		return nil, err
	}
	usage, err := s.table.Usage(ctx)
	if err != nil {
		return nil, err
	}
	r["conntrack"] = float64(usage.Count)
	runtime.GC()
	var mem runtime.MemStats
	runtime.ReadMemStats(&mem)
	r["heap MB"] = float64(mem.HeapAlloc) / (1 << 20)
	r["goroutines"] = float64(goroutines())
	files, err := descriptors()
	r["descriptors"] = float64(files)
	rss, rssErr := valueOf("/proc/self/status", "VmRSS:")
	slab, slabErr := valueOf("/proc/meminfo", "SUnreclaim:")
	r["RSS MB"], r["slab MB"] = rss/1024, slab/1024
	return r, errors.Join(err, rssErr, slabErr)
}

// goroutines counts the goroutines that do not belong to the traffic.
func goroutines() (n int) {
	stacks := make([]byte, 8<<20)
	stacks = stacks[:runtime.Stack(stacks, true)]
	for stack := range bytes.SplitSeq(stacks, []byte("\n\n")) {
		if !bytes.Contains(stack, []byte("/netnstest.")) {
			n++
		}
	}
	return n
}

// withoutNeighbour runs a function while the neighbour pauses, because nft begins a listing again
// after a foreign commit.
func (s *soaking) withoutNeighbour(ctx context.Context, do func() error) error {
	if _, err := s.neighbour.Close(); err != nil {
		return fmt.Errorf("neighbour: %w", err)
	}
	err := do()
	n, startErr := busywriter.Start(ctx, s.Node.NS.Fd())
	s.neighbour = n
	return errors.Join(err, startErr)
}

// countObjects counts the objects of nf_tables that nft lists, except the neighbour's table.
func (s *soaking) countObjects(r reading) error {
	out, err := s.run("nft -j list ruleset")
	if err != nil {
		return fmt.Errorf("nft: %w", err)
	}
	var ruleset struct {
		Nftables []map[string]struct {
			Table, Name string
			Elem        []json.RawMessage
		}
	}
	if err := json.Unmarshal(out, &ruleset); err != nil {
		return fmt.Errorf("nft: %w", err)
	}
	for _, object := range ruleset.Nftables {
		for kind, o := range object {
			if o.Table == "neighbour" || kind == "table" && o.Name == "neighbour" {
				continue
			}
			r[kind+"s"]++
			r["elements"] += float64(len(o.Elem))
		}
	}
	r["sets"] += r["maps"]
	return nil
}

// countServers counts the virtual servers of IPVS, their destinations, and policy rules.
func (s *soaking) countServers(r reading) error {
	var table []byte
	err := s.Node.NS.Do(func() (err error) {
		table, err = os.ReadFile("/proc/thread-self/net/ip_vs")
		if errors.Is(err, fs.ErrNotExist) {
			err = nil
		}
		return err
	})
	if err != nil {
		return err
	}
	for line := range bytes.Lines(table) {
		switch word, _, _ := bytes.Cut(bytes.TrimSpace(line), []byte(" ")); string(word) {
		case "TCP", "UDP", "SCTP", "FWM":
			r["servers"]++
		case "->":
			r["dests"]++
		}
	}
	r["dests"] = max(0, r["dests"]-1) // the heading
	for _, family := range []string{"-4", "-6"} {
		out, err := s.run("ip " + family + " rule")
		if err != nil {
			return fmt.Errorf("ip rule: %w", err)
		}
		r["policies"] += float64(bytes.Count(out, []byte("\n")))
	}
	return nil
}

// valueOf reads a line of a file in /proc, in kB.
func valueOf(file, key string) (value float64, err error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	for line := range bytes.Lines(data) {
		if bytes.HasPrefix(line, []byte(key)) {
			_, err = fmt.Sscan(string(line[len(key):]), &value)
			return value, err
		}
	}
	return 0, fmt.Errorf("%s has no %s", file, key)
}

// grown compares the greatest figures of the first third of the readings and of the last third. It
// leaves out the very first reading, because buffers are still unused then.
func grown(l []reading) error {
	if len(l) < 7 {
		return fmt.Errorf("%d readings are too few to tell", len(l))
	}
	l = l[1:]
	third := len(l) / 3
	var errs []error
	for _, c := range columns {
		first, last := greatest(l[:third], c.name), greatest(l[len(l)-third:], c.name)
		if c.part >= 0 && last > first*(1+c.part)+c.more {
			errs = append(errs, fmt.Errorf("%s: %.1f in the first third, %.1f in the last", c.name,
				first, last))
		}
	}
	return errors.Join(errs...)
}

// greatest is the greatest figure of a column. A median would depend on the number of flushes,
// because a flush leaves fewer objects for a while.
func greatest(l []reading, name string) (value float64) {
	for _, r := range l {
		value = max(value, r[name])
	}
	return value
}
