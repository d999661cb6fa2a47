package livetrace

import (
	"cmp"
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/kernlb/kernlb/internal/nft"
	"github.com/kernlb/kernlb/internal/rawnl"
	"github.com/kernlb/kernlb/internal/threadns"
	"github.com/kernlb/kernlb/internal/wait"
)

const (
	tableName       = "kernlb-trace"
	defaultPatience = time.Second
	// queueSize is the size of the queue of events, which the kernel doubles. A packet generates
	// some fifty events of less than 1 KiB each.
	queueSize = 4 << 20
	eventSize = 8 << 10
)

// Tracer traces packets, one after another. Its methods must not be called concurrently.
type Tracer struct {
	ns       *threadns.NS
	conn     *rawnl.Conn
	listener *rawnl.Listener
	family   *nft.Family
	table    string
	patience time.Duration
	owned    bool // the kernel removes the table
	buf      [eventSize]byte
}

// Open starts to watch for packets. Packets that arrive from now on can be traced, even before
// [Tracer.Next] is called. Open needs CAP_NET_ADMIN, and CAP_SYS_ADMIN for another network
// namespace. Errors match the sentinels of package dataplane.
func Open(ctx context.Context, cfg *Config) (*Tracer, error) {
	t, err := open(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("livetrace: open: %w", err)
	}
	return t, nil
}

func open(ctx context.Context, cfg *Config) (*Tracer, error) {
	cfg = cmp.Or(cfg, &Config{}) // which is refused: it names no destination
	if err := cfg.Filter.check(); err != nil {
		return nil, err
	}
	ns, err := threadns.Open(cfg.NetNS)
	if err != nil {
		return nil, err
	}
	t := &Tracer{family: nft.Families[nft.FamilyIndex(cfg.Filter.Dst.Addr())],
		patience: cmp.Or(cfg.Patience, defaultPatience), ns: ns}
	if err := t.begin(ctx, &cfg.Filter); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// begin starts to listen, and creates the table.
func (t *Tracer) begin(ctx context.Context, want *Filter) error {
	err := t.ns.Do(func() (err error) {
		if t.conn, err = rawnl.Dial(nil); err != nil {
			return err
		}
		t.listener, err = rawnl.Listen([]uint32{nft.GroupTrace}, queueSize)
		return err
	})
	if err != nil {
		return nft.Explain(err, nil, nft.Running())
	}
	var name [4]byte
	rand.Read(name[:]) //nolint:errcheck // never fails
	var b rawnl.Batch
	t.table, t.owned = tableName+"-"+hex.EncodeToString(name[:]), true
	nft.NewEncoder(&b, t.family, t.table).AddOwnedTable()
	err = t.commit(ctx, &b, want)
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) { // Linux 5.10 and 5.11
		t.table, t.owned = tableName, false
		b.Reset()
		e := nft.NewEncoder(&b, t.family, t.table)
		e.EnsureTable()
		e.DeleteTable()
		e.AddTable()
		err = t.commit(ctx, &b, want)
	}

	if err != nil {
		t.table = ""
		return nft.Explain(err, &b, nft.Running())
	}

	return nil
}

// commit commits the commands at the beginning of the batch together with the chains.
func (t *Tracer) commit(ctx context.Context, b *rawnl.Batch, want *Filter) error {
	e, p := nft.NewEncoder(b, t.family, t.table), program(t.family, want)
	e.AddSet(followed(t.family))
	p.WriteChains(e)
	p.WriteRules(e)
	return t.conn.Commit(ctx, b, 0)
}

// Close stops the tracing, and removes the table.
func (t *Tracer) Close() error {
	var errs []error
	if t.listener != nil {
		errs = append(errs, t.listener.Close())
	}
	if t.conn != nil {
		if t.table != "" && !t.owned {
			var b rawnl.Batch
			nft.NewEncoder(&b, t.family, t.table).DeleteTable()
			errs = append(errs, rawnl.Except(t.conn.Commit(context.Background(), &b, 0),
				unix.ENOENT))
		}

		errs = append(errs, t.conn.Close())
	}

	return errors.Join(append(errs, t.ns.Close())...)
}

// Next waits for the next matching packet. It returns the path of that packet and of the first
// answer, or an error when ctx ends. Meanwhile, it does not trace other packets.
func (t *Tracer) Next(ctx context.Context) (*Trace, error) {
	tr, err := t.next(ctx)
	if err != nil {
		return nil, fmt.Errorf("livetrace: %w", err)
	}
	return tr, nil
}

func (t *Tracer) next(ctx context.Context) (*Trace, error) {
	f := follower{table: t.table}
	if err := t.listener.SetDeadline(time.Time{}); err != nil {
		return nil, err
	}
	done := make(chan struct{})
	stop := context.AfterFunc(ctx, func() {
		defer close(done)
		t.listener.SetDeadline(time.Unix(1, 0)) //nolint:errcheck // fails only if it is closed
	})
	defer func() {
		if !stop() {
			<-done
		}
	}()

	for !f.done() {
		ours, err := t.receive(&f)
		if ours && err == nil {
			err = t.listener.SetDeadline(time.Now().Add(t.patience))
		}

		// ctx may have ended before this deadline was set.
		switch ended := wait.Ended(ctx); {
		case ended != nil:
			return nil, ended
		case errors.Is(err, os.ErrDeadlineExceeded):
			return t.finish(ctx, &f)
		case err == rawnl.ErrOverflow:
			return nil, errors.New("there were more events than could be read")
		case err != nil:
			return nil, err
		}
	}

	return t.finish(ctx, &f)
}

// receive handles the events of one datagram. It reports whether one of them belongs to the traced
// packet or its answer.
func (t *Tracer) receive(f *follower) (ours bool, err error) {
	n, err := t.listener.Receive(t.buf[:])
	if err != nil {
		return false, err
	}
	err = rawnl.Messages(t.buf[:n], func(m rawnl.Message) error {
		if m.Subsys != rawnl.SubsysNFTables || m.Type != nft.MsgTrace {
			return nil
		}
		e, err := nft.DecodeTrace(m.Attrs)
		if err != nil {
			return err
		}
		ours = f.event(m.Family, &e) || ours
		return nil
	})
	return ours, err
}

// finish reads the rules and the interfaces in the trace.
func (t *Tracer) finish(ctx context.Context, f *follower) (*Trace, error) {
	l := []*walk{f.request}
	if f.answer != nil {
		l = append(l, f.answer)
		f.request.Answer = &f.answer.Trace
	}

	last := l[len(l)-1]
	err := t.ns.Do(func() error {
		for _, w := range l {
			w.In, w.Out = interfaceName(w.in), interfaceName(w.out)
		}
		return t.askRouting(last)
	})
	if err != nil {
		return nil, err
	}
	if err := t.askConntrack(ctx, last); err != nil {
		return nil, err
	}
	for _, w := range l {
		for i := range w.Steps {
			if r := w.Steps[i].Rule; r != nil && r.Handle != 0 {
				if err := t.readRule(ctx, r); err != nil {
					return nil, err
				}
			}
		}

		if w.By != nil && w.By.refuses {
			w.Fate = Refused
		}
	}

	return &f.request.Trace, nil
}

func interfaceName(index uint32) string {
	if index == 0 {
		return ""
	}
	i, err := net.InterfaceByIndex(int(index))
	if err != nil {
		return fmt.Sprintf("interface %d", index)
	}
	return i.Name
}

// readRule reads a rule. If the rule no longer exists, its text remains empty.
func (t *Tracer) readRule(ctx context.Context, r *Rule) error {
	var b rawnl.Batch
	nft.AppendGetRule(&b, r.family, r.Table, r.Chain, r.Handle)
	replies, err := t.conn.Query(ctx, &b)
	if err != nil || len(replies) == 0 {
		return rawnl.Except(err, unix.ENOENT)
	}
	info, err := nft.DecodeRule(replies[0].Attrs)
	if err != nil {
		return err
	}
	r.Comment, r.Text = nft.CommentOf(info.UserData), nft.ListRule(r.family, info.Exprs)
	r.refuses = info.Effect().Refuses
	return nil
}
