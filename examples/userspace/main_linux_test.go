package main

import (
	"bytes"
	_ "embed" // of the manifest
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/servicemodel"
)

// asProgram is an environment variable. If it is set, the test binary is the program, with these
// arguments, one per line.
const asProgram = "USERSPACE_ARGUMENTS"

func TestMain(m *testing.M) {
	if args := os.Getenv(asProgram); args != "" {
		os.Args = append([]string{"userspace"}, strings.Split(args, "\n")...)
		main()
		return
	}

	os.Exit(m.Run())
}

// patience is the maximum wait of a test.
const patience = time.Minute

// program is a running program.
type program struct {
	*exec.Cmd
	log *os.File
}

func (p *program) output() string {
	text, _ := os.ReadFile(p.log.Name())
	return string(text)
}

func start(t *testing.T, args ...string) *program {
	t.Helper()
	log, err := os.CreateTemp(t.TempDir(), "log")
	require.NoError(t, err)
	t.Cleanup(func() { log.Close() })
	p := &program{Cmd: exec.Command("/proc/self/exe"), log: log}
	p.Env = append(os.Environ(), asProgram+"="+strings.Join(args, "\n"))
	p.Stderr = log
	require.NoError(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill() })
	return p
}

// logs waits until the program logs a text.
func (p *program) logs(t *testing.T, text string) {
	t.Helper()
	require.Eventually(t, func() bool { return strings.Contains(p.output(), text) }, patience,
		5*time.Millisecond, "no %q", text)
}

// endpoint listens. It sends its name to each connection, and then echoes until the client ends.
func endpoint(t *testing.T, name string) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	t.Cleanup(func() { l.Close() })
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.WriteString(c, name)
				_, _ = io.Copy(c, c)
			}()
		}
	}()

	return l.Addr().String()
}

// visit connects, and returns the name of the server, or "" if none answers.
func visit(t *testing.T, at string) (net.Conn, string) {
	t.Helper()
	c, err := net.Dial("tcp", at)
	if err != nil {
		return nil, ""
	}
	t.Cleanup(func() { c.Close() })
	b := make([]byte, 3)
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = io.ReadFull(c, b)
	return c, string(b)
}

// write replaces a manifest atomically, as editors and config maps do.
func write(t *testing.T, path, text string) {
	t.Helper()
	require.NoError(t, os.WriteFile(path+".new", []byte(text), 0o600))
	require.NoError(t, os.Rename(path+".new", path))
}

var tests atomic.Uint32

// free returns an address that no other test uses, in this process or another.
func free(t *testing.T) string {
	t.Helper()
	pid, n := os.Getpid(), tests.Add(1)
	return fmt.Sprintf("127.%d.%d.%d:8080", byte(pid>>8), byte(pid), n%250+1)
}

//go:embed web.yaml
var webManifest string

// lostEndpoints are endpoints of a service that does not exist.
const lostEndpoints = `
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: lost, labels: {kubernetes.io/service-name: lost}}
addressType: IPv4
ports: [{name: http, port: 8080}]
endpoints: [{addresses: [10.244.0.9]}]
`

// TestAProgramFollowsItsManifests goes through the life of the program.
func TestAProgramFollowsItsManifests(t *testing.T) {
	t.Parallel()
	dir, at := t.TempDir(), free(t)
	path := filepath.Join(dir, "web.yaml")
	write(t, path, webManifest)
	write(t, filepath.Join(dir, "lost.yaml"), lostEndpoints)
	require.NoError(t, syscall.Mkfifo(filepath.Join(dir, "pipe.yaml"), 0o600)) // it is no manifest
	p := start(t, "-f", dir, "-interval", "10ms", "-drain", "20s", "-map", "10.96.0.10:80="+at,
		"-map", "10.244.0.1:8080="+endpoint(t, "one"),
		"-map", "10.244.0.2:8080="+endpoint(t, "two"))
	p.logs(t, "applied added=1")
	names := map[string]bool{}
	var open net.Conn
	for range 2 {
		c, name := visit(t, at)
		open, names[name] = c, true
	}

	require.Equal(t, map[string]bool{"one": true, "two": true}, names)

	// A broken manifest changes nothing. The log names its file, line and field.
	write(t, path, strings.Replace(webManifest, "port: 80,", "port: 80000,", 1))
	p.logs(t, path+":11: document 1: Service default/web: spec.ports[0].port: 80000: ")
	_, name := visit(t, at)
	require.NotEmpty(t, name)

	// An unreadable manifest changes nothing either. The log says so once.
	require.NoError(t, os.Symlink("nowhere", filepath.Join(dir, "link.yaml")))
	const unread = "link.yaml: no such file or directory"
	p.logs(t, unread)
	time.Sleep(100 * time.Millisecond) // ten intervals
	require.Equal(t, 1, strings.Count(p.output(), unread))
	require.NoError(t, os.Remove(filepath.Join(dir, "link.yaml")))

	// A removed endpoint takes no new connections.
	write(t, path, strings.Replace(webManifest,
		"- {addresses: [10.244.0.2], conditions: {ready: true}}\n", "", 1))
	p.logs(t, "applied added=0 changed=0 removed=1")
	for range 4 {
		_, name := visit(t, at)
		require.Equal(t, "one", name)
	}

	const warning = `msg="state warning" service=default/lost field=endpoints`
	require.Equal(t, 1, strings.Count(p.output(), warning), p.output())

	// After a signal to stop, the program stops listening and waits for open connections.
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	p.logs(t, "stopped listening")
	_, name = visit(t, at)
	require.Empty(t, name)
	_, err := open.Write([]byte("x"))
	require.NoError(t, err)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM)) // the second one does not wait
	require.EqualError(t, p.Wait(), "signal: terminated")
}

// TestAProgramStopsWhenConnectionsEnd also shows that the log names a refused service, and that the
// service is served once that is possible.
func TestAProgramStopsWhenConnectionsEnd(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "web.yaml")
	write(t, path, webManifest)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	at := l.Addr().String()
	p := start(t, "-f", path, "-interval", "10ms", "-drain", "20s", "-map", "10.96.0.10:80="+at,
		"-map", "10.244.0.0/24="+endpoint(t, "one"))
	p.logs(t, `msg="service is refused" at=`+path+`:2 error="proxy: service default/web: the `+
		`socket at `+at+`/tcp, which is taken, is not ours: `)
	require.NoError(t, l.Close())
	p.logs(t, "applied added=1")
	c, name := visit(t, at)
	require.Equal(t, "one", name)
	require.NoError(t, p.Process.Signal(syscall.SIGTERM))
	p.logs(t, `msg="stopped listening" open=1`)
	require.NoError(t, c.Close())
	require.NoError(t, p.Wait())
}

func TestAProgramDoesNotStartWithABrokenManifest(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "web.yaml")
	write(t, path, strings.Replace(webManifest, "ports:", "prots:", 1))
	p := start(t, "-f", path, "-f", path+"x")
	require.Error(t, p.Wait())
	require.Contains(t, p.output(), path+":11: document 1: Service default/web: spec.prots: ")
	require.Contains(t, p.output(), "read manifest: open "+path+"x: no such file or directory")
}

func TestFlags(t *testing.T) {
	t.Parallel()
	for want, args := range map[string][]string{
		`"web.yaml" is no flag: give manifests with -f`:            {"web.yaml"},
		"give manifests with -f":                                   {},
		"-interval: 0s: must be positive":                          {"-f", "x", "-interval", "0s"},
		"-drain: -1s: must not be negative":                        {"-f", "x", "-drain", "-1s"},
		`invalid value "x" for flag -map: must be ADDRESS=ADDRESS`: {"-map", "x"},
		`invalid value "x" for flag -connections: must be leave, cut, or a time of at least 1s`: {
			"-connections", "x"},
	} {
		_, err := parse(args, io.Discard)
		require.EqualError(t, err, want)
	}

	o, err := parse([]string{"-f", "a", "-f", "b", "-proxy-protocol", "default/web",
		"-connections", "30s"}, io.Discard)
	require.NoError(t, err)
	require.Equal(t, []string{"a", "b"}, o.paths)
	require.Equal(t, "drain 30s", o.connections.String())
	require.True(t, o.proxy.Header(servicemodel.Name{Namespace: "default", Name: "web"}))
	require.False(t, o.proxy.Header(servicemodel.Name{}))
	var help bytes.Buffer
	_, err = parse([]string{"-h"}, &help)
	require.ErrorIs(t, err, flag.ErrHelp)
	require.Contains(t, help.String(), "-max-flows")
}
