package accepted

import (
	"context"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane"
	"github.com/kernlb/kernlb/dataplane/memory"
	"github.com/kernlb/kernlb/servicemodel"
)

func web(port uint16) *servicemodel.Service {
	return &servicemodel.Service{Name: servicemodel.Name{Namespace: "default", Name: "web"},
		ClusterIPs: []netip.Addr{netip.MustParseAddr("10.96.0.10")},
		Ports:      []servicemodel.ServicePort{{Protocol: servicemodel.TCP, Port: port}}}
}

// process applies a state like a program that starts and ends, with its backend.
func process(t *testing.T, m *memory.Backend, s servicemodel.State) *dataplane.Result {
	t.Helper()
	f := Open("test", slog.New(slog.DiscardHandler))
	e := dataplane.New(m, &dataplane.Config{KeepRefused: true, Accepted: f.Load()})
	defer e.Subscribe(f.Observe)()
	r, err := e.Apply(t.Context(), s)
	require.NoError(t, err)
	ctx, stop := context.WithCancel(t.Context())
	stop()
	require.NoError(t, f.Run(ctx))
	return r
}

func TestARefusedServiceStaysAsItWasOverRestarts(t *testing.T) {
	dir := t.TempDir() + "/made"
	t.Setenv("RUNTIME_DIRECTORY", dir+":"+t.TempDir()) // of a unit with two directories
	m := memory.New(nil)
	good, bad := servicemodel.State{}.WithService(web(80)), servicemodel.State{}.WithService(web(0))
	was := process(t, m, good).Changes.New
	for range 2 {
		r := process(t, m, bad)
		require.Len(t, r.Refused, 1)
		require.True(t, r.Refused[0].Kept)
		require.True(t, r.Changes.New.Equal(was))
	}

	f := Open("test", slog.New(slog.DiscardHandler))
	require.Equal(t, dir, filepath.Dir(f.path))
	require.NoError(t, os.WriteFile(f.path, []byte("{"), 0o600))
	require.False(t, process(t, m, bad).Refused[0].Kept)
}

// After a failed write, the definitions are written later, even if nothing new was accepted.
func TestAFailedWriteIsRepeated(t *testing.T) {
	dir := t.TempDir() + "/made"
	t.Setenv("RUNTIME_DIRECTORY", dir)
	require.NoError(t, os.WriteFile(dir, nil, 0o600)) // no directory can be made there
	f := Open("test", slog.New(slog.DiscardHandler))
	f.Observe(t.Context(), dataplane.Applied{Result: &dataplane.Result{
		Accepted: servicemodel.State{}.WithService(web(80))}})
	require.Error(t, f.write())
	require.NoError(t, os.Remove(dir))
	require.NoError(t, f.write())
	require.Equal(t, 1, f.Load().Len())
}
