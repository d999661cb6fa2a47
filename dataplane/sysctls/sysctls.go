// Package sysctls sets the values of a network namespace that a backend needs, and restores them.
// It decides the order of the steps, keeps records of the earlier values, and finds out whether
// other programs rely on a value. A backend calls it in each commit:
//
//	err := owner.Look(ctx, &state, want) // reads the present and earlier values
//	change := state.Plan(want)           // the transaction brings the guards and change.Records
//	err = owner.Around(ctx, &state, change, transaction)
//	state.Committed(change)
//
// After the backend has read the records, it calls [State.Read]. So if a process is killed between
// any two steps, every value still has its guard, and another process finds the earlier values in
// the kernel.
//
// [Loopback] returns the value that node ports at loopback addresses need, and [Guards] finds the
// guards of other programs.
package sysctls

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/kernlb/kernlb/internal/logkey"
)

// Values reads and writes values of one network namespace. Their names are paths below /proc/sys,
// such as "net/ipv4/ip_forward". A backend may define other names.
type Values interface {
	// Read returns the current value. If the value does not exist, the error matches
	// fs.ErrNotExist.
	Read(ctx context.Context, name string) (string, error)
	Write(ctx context.Context, name, value string) error
	Close() error
}

// Others reports how other programs use the values, including other instances of the backend.
type Others interface {
	// Earlier returns the values from before other programs changed them, as far as they are known.
	Earlier(ctx context.Context) (map[string]string, error)
	// Relied returns the reasons why other programs may rely on values, by name of the value.
	Relied(ctx context.Context, names []string) (map[string]string, error)
}

// Owner sets and restores the values for one instance.
type Owner struct {
	// Values are required.
	Values Values
	// Others may be nil, which means that no other program sets the values or relies on them.
	Others Others
	// Ours are the values that this instance sets, by name, as far as they are known. If the
	// current value differs from Ours, another program or a person set it, and it is not restored.
	Ours map[string]string
	// Logger gets a record at info level for each value that is not restored. Nil disables logging.
	Logger *slog.Logger
}

// State is what a process knows about the values of one instance. The zero State knows nothing.
type State struct {
	// Now has the current values, as far as they were read.
	Now map[string]string
	// Records are the earlier values that the instance has recorded in the kernel.
	Records map[string]string
	// lost are the last records, if they have disappeared, for example after a flush of the
	// ruleset.
	lost map[string]string
	// others are the earlier values that other programs report.
	others map[string]string
	// restored are the values that were restored for a transaction that then failed. The next
	// reading does not call them drift.
	restored map[string]string
}

// Read returns the new state once records have been read. If complete is false, the instance's
// settings were missing. Records may then be lost too, so the state remembers the previous ones.
func (s State) Read(records map[string]string, complete bool) State {
	next := State{Records: records, restored: s.restored}
	if !complete && len(s.Records) > 0 {
		next.lost = s.Records
	} else if !complete {
		next.lost = s.lost
	}

	return next
}

// Change contains the changes of values and records in a commit.
type Change struct {
	// Records are the earlier values of all desired values. They belong in the transaction that
	// adds the guards.
	Records map[string]string
	// Set are the values to set after the records have been written.
	Set map[string]string
	// Restore are the earlier values to restore before the records are removed.
	Restore map[string]string

	want map[string]string
}

// Plan returns the change to the desired values. If an earlier value is unknown, Plan assumes that
// it is the current value. If the current value already is the desired value, another instance may
// have set it, and then has a record of the earlier value.
func (s *State) Plan(want map[string]string) Change {
	if len(want)+len(s.Records)+len(s.lost) == 0 {
		return Change{}
	}
	c := Change{Records: map[string]string{}, Set: map[string]string{},
		Restore: map[string]string{}, want: want}
	for name, value := range want {
		now := s.Now[name]
		if now != value {
			c.Set[name] = value
		}
		c.Records[name] = now
		if was, known := s.Records[name]; known {
			c.Records[name] = was
		} else if was, known := s.lost[name]; known && now == value {
			c.Records[name] = was
		} else if was, known := s.others[name]; known && now == value {
			c.Records[name] = was
		}
	}

	known := s.Records
	if len(known) == 0 {
		known = s.lost
	}
	for name, was := range known {
		if _, wanted := want[name]; !wanted {
			c.Restore[name] = was
		}
	}

	return c
}

// Committed updates the state after a change was committed.
func (s *State) Committed(c Change) { *s = State{Now: c.want, Records: c.Records} }

// Look reads the current values of the desired names into a state. If an earlier value is not
// recorded, Look also consults Others.
func (o *Owner) Look(ctx context.Context, s *State, want map[string]string) (err error) {
	now, asked := make(map[string]string, len(want)), false
	for _, name := range sorted(want) {
		if now[name], err = o.Values.Read(ctx, name); err != nil {
			return err
		}
		_, recorded := s.Records[name]
		asked = asked || !recorded
	}

	s.Now = now
	if asked && o.Others != nil {
		s.others, err = o.Others.Earlier(ctx)
	}
	return err
}

// Drift calls Look, and lists the values that differ from the desired values. It leaves out values
// that [Owner.Around] has restored for a failed transaction since the last call: the next commit,
// or the next call, handles them.
func (o *Owner) Drift(ctx context.Context, s *State, want map[string]string) (l []string,
	err error) {
	err = o.Look(ctx, s, want)
	for _, name := range sorted(want) {
		now := s.Now[name]
		was, ours := s.restored[name]
		if now != want[name] && !(ours && now == was) && err == nil {
			l = append(l, fmt.Sprintf("sysctl %s is %s", dotted(name), now))
		}
	}

	s.restored = nil
	return l, err
}

// Hold reports whether the current values equal the desired values.
func (o *Owner) Hold(ctx context.Context, want map[string]string) (bool, error) {
	for _, name := range sorted(want) {
		if now, err := o.Values.Read(ctx, name); err != nil || now != want[name] {
			return false, err
		}
	}

	return true, nil
}

// Around restores the values of a change, runs the transaction that adds or removes guards and
// records, and then sets the new values. A commit of several steps calls [Owner.Set] and
// [Owner.Restore] itself. If the transaction fails, for example because another program has
// committed, restored values stay restored, because it is unknown whether the guards still exist.
func (o *Owner) Around(ctx context.Context, s *State, c Change, transaction func() error) error {
	if err := o.Restore(ctx, c); err != nil {
		return err
	}
	if err := transaction(); err != nil {
		s.restored = c.Restore
		return err
	}
	return o.Set(ctx, c)
}

// Set sets the values of a change.
func (o *Owner) Set(ctx context.Context, c Change) error {
	for _, name := range sorted(c.Set) {
		if err := o.Values.Write(ctx, name, c.Set[name]); err != nil {
			return err
		}
	}

	return nil
}

// Restore restores the values of a change, unless other programs have set them since, or may rely
// on them.
func (o *Owner) Restore(ctx context.Context, c Change) error {
	if len(c.Restore) == 0 {
		return nil
	}
	now := map[string]string{}
	for _, name := range sorted(c.Restore) {
		is, err := o.Values.Read(ctx, name)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		if err == nil && is != c.Restore[name] {
			now[name] = is
		}
	}

	if len(now) == 0 {
		return nil
	}

	names := sorted(now)
	relied, log := map[string]string{}, o.Logger
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	if o.Others != nil {
		var err error
		if relied, err = o.Others.Relied(ctx, names); err != nil {
			return err
		}
	}

	for _, name := range names {
		why := relied[name]
		if ours, known := o.Ours[name]; known && now[name] != ours {
			why = "somebody else has set it since"
		}
		if why != "" {
			log.InfoContext(ctx, "tunable is left as it is", logkey.Tunable, Text(name),
				logkey.Is, now[name], logkey.Was, c.Restore[name], logkey.Reason, why)
		} else if err := o.Values.Write(ctx, name, c.Restore[name]); err != nil {
			return err
		}
	}

	return nil
}

// Close closes the values. The zero Owner has no values to close.
func (o *Owner) Close() error {
	if o.Values == nil {
		return nil
	}
	return o.Values.Close()
}

// Text is the name of a value in messages and records: "sysctl net/ipv4/ip_forward".
func Text(name string) string {
	if strings.Contains(name, "/") {
		return "sysctl " + name
	}
	return name
}

// beforeLoopback is the beginning of a record of [RouteLocalnet].
const beforeLoopback = "route-localnet-before "

// Record is the text that records an earlier value in the kernel: "sysctl net/ipv4/ip_forward 0".
func Record(name, value string) string {
	switch {
	case name != RouteLocalnet:
		return Text(name) + " " + value
	case value == "":
		value = "0"
	}

	return beforeLoopback + value
}

// ParseRecord is the inverse of [Record]. ok is false for any other text.
func ParseRecord(text string) (name, value string, ok bool) {
	if value, ok := strings.CutPrefix(text, beforeLoopback); ok {
		return RouteLocalnet, value, true
	}
	i := strings.LastIndexByte(text, ' ')
	if i < 0 {
		return "", "", false
	}
	name, sysctl := strings.CutPrefix(text[:i], "sysctl ")
	return name, text[i+1:], sysctl || strings.HasPrefix(name, "timeout ")
}

// ParseRecords returns the earlier values recorded in the lines.
func ParseRecords(lines []string) map[string]string {
	records := map[string]string{}
	for _, line := range lines {
		if name, value, ok := ParseRecord(line); ok {
			records[name] = value
		}
	}

	return records
}

// Lines returns the values that the change sets and restores, in the format of sysctl(8).
func (c Change) Lines() (l []string) {
	for _, values := range []map[string]string{c.Restore, c.Set} {
		for _, name := range sorted(values) {
			l = append(l, dotted(name)+"="+values[name])
		}
	}

	return l
}

// dotted is the name of a sysctl as sysctl(8) writes it.
func dotted(name string) string { return strings.ReplaceAll(name, "/", ".") }

// sorted returns the names of values. For the usual empty map it allocates nothing.
func sorted(values map[string]string) []string {
	if len(values) == 0 {
		return nil
	}
	return slices.Sorted(maps.Keys(values))
}
