package docs_test

import (
	"context"
	"errors"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/backends"
	"github.com/kernlb/kernlb/dataplane/kernelerr"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/servicemodel"
)

// records notes each record that is logged, as a row of logs.md.
type records map[string]bool

func (r records) Enabled(context.Context, slog.Level) bool { return true }
func (r records) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r records) WithGroup(string) slog.Handler            { return r }

func (r records) Handle(_ context.Context, rec slog.Record) error {
	var keys []string
	rec.Attrs(func(a slog.Attr) bool {
		keys = append(keys, "`"+a.Key+"`")
		return true
	})

	if rec.Level == slog.LevelDebug && rec.Message == "applied" {
		keys = []string{"the same, for an apply that found nothing to do"}
	}
	r["| "+strings.ToLower(rec.Level.String())+" | "+rec.Message+" | "+
		strings.Join(keys, ", ")+" |"] = true
	return nil
}

// The table has exactly the lines that an engine logs, except three that need a node or a long
// time.
func TestTheTableOfLogsIsWhatAnEngineLogs(t *testing.T) {
	t.Parallel()
	logged := records{}
	m := memory.New(nil)
	e := dataplane.New(m, &dataplane.Config{Logger: slog.New(logged)})
	apply := func(s servicemodel.State) { _, _ = e.Apply(t.Context(), s) }
	svc := func(name string, port uint16) *servicemodel.Service {
		return &servicemodel.Service{Name: servicemodel.Name{Namespace: "default", Name: name},
			ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.1")},
			Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: port}}}
	}
	state := servicemodel.State{}.WithService(svc("web", 80))
	apply(state)
	apply(state)
	next := dataplane.New(memory.New(m.Kernel()), &dataplane.Config{Logger: slog.New(logged)})
	must.OK(next.Apply(t.Context(), state))(t)
	apply(state.WithEndpoints(svc("gone", 80).Name, []servicemodel.Endpoint{{
		Addr:  netip.MustParseAddr("10.244.0.1"),
		Ports: []servicemodel.EndpointPort{{Protocol: servicemodel.TCP, Port: 80}}}}))
	apply(state.WithService(svc("wep", 80)).WithService(svc("zero", 0)))
	m.Kernel().Flush()
	m.Kernel().AddDrift("a chain of nobody")
	apply(state)
	m.Fail(memory.CallCommit, 1, kernelerr.ErrConflict)
	apply(servicemodel.State{})
	m.Fail(memory.CallCommit, 1, errors.New("no memory"))
	apply(state)
	must.OK(e.Settle(t.Context()))(t)
	must.OK(e.Switch(t.Context(), memory.New(nil)))(t)
	must.OK(e.Cleanup(t.Context()))(t)

	keeping := dataplane.New(memory.New(nil), &dataplane.Config{Logger: slog.New(logged),
		KeepRefused: true})
	for _, port := range []uint16{80, 0} {
		must.OK(keeping.Apply(t.Context(), state.WithService(svc("web", port))))(t)
	}

	lacking := memory.New(nil)
	lacking.Refuse(func(c *servicemodel.ChangeSet) error {
		if c.New.Rules().OnlyFamily != 0 {
			return nil
		}
		return &backends.UnsupportedError{Object: "node", Field: backends.FieldFamily,
			Value: servicemodel.IPv6.String()}
	})
	must.OK(dataplane.New(lacking, &dataplane.Config{Logger: slog.New(logged)}).Apply(t.Context(),
		state))(t)

	lenient := dataplane.New(memory.New(nil), &dataplane.Config{Logger: slog.New(logged),
		LeaveOutEndpoints: true, Approve: func(_ context.Context, p *dataplane.Preview) error {
			if p.Changes.Counts().Removed > 0 {
				return errors.New("not now")
			}
			return nil
		}})
	must.OK(lenient.Apply(t.Context(), servicemodel.State{}.WithService(svc("web", 80)).
		WithEndpoints(svc("web", 80).Name, []servicemodel.Endpoint{{}})))(t)
	must.OK(lenient.Apply(t.Context(), state))(t)
	_, err := lenient.Apply(t.Context(), servicemodel.State{})
	require.ErrorIs(t, err, dataplane.ErrNotApproved)

	p := dataplane.NewParts(m, &dataplane.PartsConfig{Logger: slog.New(logged)})
	part := servicemodel.State{}.WithService(svc("web", 80))
	for _, owner := range []string{"default", "other"} { // the second is not the service's
		_, _ = p.Apply(t.Context(), owner, part)
	}
	m.Fail(memory.CallCommit, 1, errors.New("no memory"))
	_, err = p.Remove(t.Context(), "default")
	require.Error(t, err)

	rows := regexp.MustCompile(`(?m)^\| (?:debug|info|warn|error) \|.*$`).FindAllString(
		source(t, "../../../docs/logs.md"), -1)
	for _, row := range rows {
		if !strings.Contains(row, "watch failed") && !strings.Contains(row, "keeps undoing") &&
			!strings.Contains(row, "repair undone") {
			require.True(t, logged[row], "nothing logs: %s", row)
		}
		delete(logged, row)
	}
	require.Empty(t, logged, "docs/logs.md does not have these")
}

var (
	key     = regexp.MustCompile(`(?m)^\t(\w+) += "([^"]+)"$`)
	keyRow  = regexp.MustCompile("(?m)^\\| (`[a-z`, ]+) \\| ")
	keySpan = regexp.MustCompile("`([a-z]+)`")
	// literal matches a literal key in the code that writes a record.
	literal = regexp.MustCompile(
		`(?s)(?:[lL]og(?:ger)?\.\w+\((?:ctx, )?(?:slog\.\w+, )?|x\.debug\(ctx, )"[^"]*", ` +
			`(?:slog\.\w+\()?"|slog\.(?:Any|Int|Duration|String)\("`)
)

// All keys of log records are in internal/logkey, and the document has exactly these keys.
func TestKeysOfLogsAreInTheDocument(t *testing.T) {
	t.Parallel()
	var keys, documented []string
	for _, m := range key.FindAllStringSubmatch(source(t, "../../../internal/logkey/logkey.go"),
		-1) {
		keys = append(keys, m[2])
	}

	_, table, _ := strings.Cut(source(t, "../../../docs/logs.md"), "\n## Keys\n")
	for _, row := range keyRow.FindAllStringSubmatch(table, -1) {
		for _, m := range keySpan.FindAllStringSubmatch(row[1], -1) {
			documented = append(documented, m[1])
		}
	}

	require.ElementsMatch(t, keys, documented)
	for _, dir := range []string{"dataplane", "nftables", "iptables", "ipvs", "conntrack",
		"servicemodel", "internal/rawnl"} {
		requireNoLiteralKeys(t, "../../../"+dir)
	}
}

func requireNoLiteralKeys(t *testing.T, dir string) {
	t.Helper()
	require.NoError(t, filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := os.ReadFile(path)
		require.Empty(t, literal.FindAllString(string(text), -1), "%s: use internal/logkey", path)
		return err
	}))
}
