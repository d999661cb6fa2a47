package main

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/kernlb/kernlb/dataplane/netnstest"
	"github.com/kernlb/kernlb/examples/loadbalancer/keepalived"
	"github.com/kernlb/kernlb/internal/test/must"
	"github.com/kernlb/kernlb/internal/test/nstest"
	"github.com/kernlb/kernlb/servicemodel"
)

// besideConf is the configuration of both. The converter makes ours from it.
const besideConf = `virtual_server 203.0.113.10 80 {
    delay_loop 2
    connect_timeout 2
    retry 1
    delay_before_retry 0.5
    lb_algo rr
    lb_kind NAT
    protocol TCP
    sorry_server 10.244.1.3 8080
    real_server 10.244.1.1 8080 {
        HTTP_GET {
            connect_port 8081
            url {
                path /
                status_code 200
            }
        }
    }
    real_server 10.244.1.2 8080 {
        HTTP_GET {
            connect_port 8081
            url {
                path /
                status_code 200
            }
        }
    }
}
`

// balanced is a network with one of the two balancers, web servers in pods, and a client that
// connects all the time.
type balanced struct {
	*world
	conf    string
	command func() *exec.Cmd
	pods    []*webPod
	client  *client
}

// TestFailoverBesideKeepalived lets a real keepalived and this program meet the same failures, with
// the same configuration. It logs how long clients noticed them.
func TestFailoverBesideKeepalived(t *testing.T) {
	if os.Getenv("KERNLB_VM") == "" {
		t.Skip("needs IPVS and minutes: make keepalived runs it in the virtual machine")
	}
	rows := make([]string, len(stories))
	for _, who := range []string{"keepalived", "loadbalancer"} {
		b := newBalanced(t, who)
		b.run()
		for i, story := range stories {
			took := story.happens(b)
			t.Logf("%s: %s: %s", who, story.name, took) // log it at once
			rows[i] += " | " + took
		}

		b.kill()
	}

	for i, story := range stories {
		t.Logf("| %s%s |", story.name, rows[i])
	}
}

// newBalanced returns a network, and the command of its balancer.
func newBalanced(t *testing.T, who string) *balanced {
	b := &balanced{world: newWorld(t)}
	dir := t.TempDir()
	b.conf = filepath.Join(dir, "keepalived.conf")
	require.NoError(t, os.WriteFile(b.conf, []byte(besideConf), 0o600))
	b.command = func() *exec.Cmd {
		return exec.Command("keepalived", "--check", "--dont-fork", "--log-console", "--log-detail",
			"--use-file", b.conf, "--pid", dir+"/pid", "--checkers_pid", dir+"/checkers")
	}

	if who == "loadbalancer" {
		converted := must.OK(keepalived.Convert(b.conf, besideConf, nil))(t)
		b.write("%s", converted.File)
		b.command = func() *exec.Cmd {
			cmd := exec.Command("/proc/self/exe")
			cmd.Env = append(os.Environ(), asProgram+"=-backend ipvs -config "+b.file,
				"RUNTIME_DIRECTORY="+dir)
			return cmd
		}
	}

	// keepalived's virtual servers work only if the address is one of this host.
	nstest.Run(t, b.Node.NS, "ip address add "+vip.Addr().String()+"/32 dev lo")
	for i := range 3 {
		b.pods = append(b.pods, newWebPod(b.world, i))
	}
	b.client = newClient(b.world)
	return b
}

// run starts the balancer, and waits until both web servers answer through it.
func (b *balanced) run() {
	b.Helper()
	b.program = b.command()
	b.program.Stdout, b.program.Stderr = b.log, b.log
	b.program.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // keepalived has a child
	require.NoError(b, b.Node.NS.Do(b.program.Start))
	program, ended := b.program, make(chan error, 1)
	b.ended = ended
	go func() { ended <- program.Wait() }()
	b.Cleanup(func() {
		_ = syscall.Kill(-program.Process.Pid, syscall.SIGKILL)
		if b.Failed() {
			b.Log(b.log.String())
		}
	})

	b.client.until(func(r []answer) bool { return r[0].server == "pod1" || r[0].server == "pod2" })
}

// kill kills the balancer and its children.
func (b *balanced) kill() {
	b.Helper()
	require.NoError(b, syscall.Kill(-b.program.Process.Pid, syscall.SIGKILL))
	<-b.ended
}

// times is the number of repetitions of each failure.
const times = 5

// stories are the failures. Each returns the text to log.
var stories = []struct {
	name    string
	happens func(*balanced) string
}{
	{"a server refuses connections: until it gets none", func(b *balanced) string {
		return b.fails((*webPod).close, (*webPod).listens)
	}},
	{"a server is silent: until it gets none", func(b *balanced) string {
		return b.fails((*webPod).block, (*webPod).unblock)
	}},
	{"a server answers 503: until it gets none", func(b *balanced) string {
		return b.fails(func(p *webPod) { p.broken.Store(true) },
			func(p *webPod) { p.broken.Store(false) })
	}},
	{"a server is back: until it gets connections", (*balanced).returns},
	{"both refuse: until the sorry server answers", (*balanced).sorry},
	{"killed and started while a server is down: failed connections", (*balanced).restarts},
	{"the file is read again while a server is down: failed connections", func(b *balanced) string {
		return b.whileDown(func() { require.NoError(b, b.program.Process.Signal(syscall.SIGHUP)) })
	}},
}

// fails makes a server fail and recover several times, and returns how long clients noticed each
// failure.
func (b *balanced) fails(fail, recover func(*webPod)) string {
	var took []time.Duration
	for i := range times {
		b.healthy()
		b.afterCheck(i)
		from := time.Now()
		fail(b.pods[0])
		took = append(took, b.client.onlySince("pod2", from))
		recover(b.pods[0])
	}

	return median(took)
}

// anytime waits for a random fraction of the time between two checks, so that the next step has no
// fixed distance from a check.
func (b *balanced) anytime() { time.Sleep(rand.N(2 * time.Second)) }

// afterCheck waits for two checks of the first server, and then for a fraction of the time between
// two checks. The fraction depends on the repetition, so both programs meet failures at the same
// distances from a check.
func (b *balanced) afterCheck(i int) {
	var checks [2]time.Time
	for n := range checks {
		asked := b.pods[0].asked.Load()
		b.soon(func() bool { return b.pods[0].asked.Load() > asked }, "a check")
		checks[n] = time.Now()
	}

	time.Sleep(checks[1].Sub(checks[0]) * time.Duration(2*i+1) / (2 * times))
}

// healthy waits until both servers get connections.
func (b *balanced) healthy() {
	b.client.until(func(r []answer) bool {
		return has(r, "pod1") && has(r, "pod2") && !has(r, "pod3") && !has(r, "")
	})
}

// alone waits until only the second server gets connections.
func (b *balanced) alone() {
	b.client.until(func(r []answer) bool {
		return has(r, "pod2") && !has(r, "pod1") && !has(r, "pod3") && !has(r, "")
	})
}

func (b *balanced) returns() string {
	var took []time.Duration
	for range times {
		b.pods[0].close()
		b.alone()
		b.anytime()
		from := time.Now()
		b.pods[0].listens()
		b.healthy()
		took = append(took, b.client.first("pod1", from))
	}

	return median(took)
}

func (b *balanced) sorry() string {
	var took []time.Duration
	for i := range times {
		b.healthy()
		b.afterCheck(i)
		from := time.Now()
		b.pods[0].close()
		b.pods[1].close()
		b.client.until(func(r []answer) bool { return has(r, "pod3") && !has(r, "") })
		took = append(took, b.client.first("pod3", from))
		b.pods[0].listens()
		b.pods[1].listens()
	}

	return median(took)
}

func (b *balanced) restarts() string {
	return b.whileDown(func() {
		b.kill()
		b.run()
	})
}

// whileDown calls f while a server is down. It returns how many connections of the following three
// seconds failed.
func (b *balanced) whileDown(f func()) string {
	b.healthy()
	b.pods[0].close()
	b.alone()
	from := time.Now()
	f()
	b.client.until(func(r []answer) bool { return r[len(r)-1].at.Sub(from) > 3*time.Second })
	failed, all := b.client.failed(from)
	b.pods[0].listens()
	return fmt.Sprintf("%d of %d", failed, all)
}

func median(l []time.Duration) string {
	slices.Sort(l)
	return fmt.Sprintf("%.2f s (%.2f to %.2f)", l[len(l)/2].Seconds(), l[0].Seconds(),
		l[len(l)-1].Seconds())
}

// webPod serves clients at port 8080, and checks at port 8081.
type webPod struct {
	*world
	pod    int
	served *netnstest.Server
	checks *http.Server
	broken atomic.Bool
	asked  atomic.Int64 // the number of checks
}

func newWebPod(w *world, i int) *webPod {
	p := &webPod{world: w, pod: i}
	p.listens()
	return p
}

func (p *webPod) listens() {
	p.served = p.serve(p.pod)
	p.checks = p.serveHTTP(p.pod, 8081, func(*http.Request) bool {
		p.asked.Add(1)
		return !p.broken.Load()
	})
}

func (p *webPod) close() {
	require.NoError(p, p.served.Close())
	require.NoError(p, p.checks.Close())
}

// block makes the pod ignore all packets.
func (p *webPod) block() {
	p.nft("add table inet deaf", "add chain inet deaf in { type filter hook input priority 0; "+
		"policy drop; }")
}

func (p *webPod) unblock() { p.nft("delete table inet deaf") }

func (p *webPod) nft(commands ...string) {
	require.NoError(p, p.Pods[p.pod].NS.Do(func() error {
		for _, c := range commands {
			if err := exec.Command("nft", c).Run(); err != nil {
				return err
			}
		}

		return nil
	}))
}

// answer is the result of a connection. The server is empty if none answered.
type answer struct {
	at     time.Time // when it was begun
	server string
}

// client connects at regular times, whether earlier connections were answered or not.
type client struct {
	w  *world
	mu sync.Mutex
	// answers are in the order in which the connections began.
	answers []answer
}

// pace is the time between two connections, and patience the maximum wait of each for an answer.
const pace, patience = 100 * time.Millisecond, 2 * time.Second

func newClient(w *world) *client {
	c := &client{w: w}
	ctx, stop := context.WithCancel(w.Context())
	var asking sync.WaitGroup
	w.Cleanup(func() {
		stop()
		asking.Wait()
	})

	asking.Go(func() {
		for ctx.Err() == nil {
			time.Sleep(pace)
			asking.Go(func() { c.ask(ctx) })
		}
	})

	return c
}

// pending stands for the server of a connection without a result yet.
const pending = "pending"

// ask connects once.
func (c *client) ask(ctx context.Context) {
	c.mu.Lock()
	i := len(c.answers)
	c.answers = append(c.answers, answer{time.Now(), pending})
	c.mu.Unlock()
	server := netnstest.Probe{From: c.w.Outside[0], Proto: servicemodel.TCP, To: vip,
		Timeout: patience}.Send(ctx).Server
	c.mu.Lock()
	defer c.mu.Unlock()
	c.answers[i].server = server
}

// streak is the number of consecutive results that count as a proof.
const streak = 10

// until waits until the last connections since the call are as wanted.
func (c *client) until(ok func(last []answer) bool) {
	c.w.Helper()
	from := time.Now()
	c.w.soon(func() bool {
		l := c.since(from)
		return len(l) >= streak && ok(l[len(l)-streak:])
	}, "who answers")
}

// since returns the answers to connections that began after a moment, up to the first without a
// result.
func (c *client) since(from time.Time) []answer {
	c.mu.Lock()
	defer c.mu.Unlock()
	i, _ := slices.BinarySearchFunc(c.answers, from, func(a answer, t time.Time) int {
		return a.at.Compare(t)
	})
	l := c.answers[i:]
	if end := slices.IndexFunc(l, func(a answer) bool { return a.server == pending }); end >= 0 {
		l = l[:end]
	}
	return slices.Clone(l)
}

// onlySince waits until only one server answers. It returns the time from a moment to the start of
// the last connection that another server or none answered.
func (c *client) onlySince(server string, from time.Time) (last time.Duration) {
	c.w.Helper()
	another := func(a answer) bool { return a.server != server }
	c.until(func(r []answer) bool { return !slices.ContainsFunc(r, another) })
	for _, a := range c.since(from) {
		if another(a) {
			last = a.at.Sub(from)
		}
	}

	return last
}

// first returns the time from a moment to the start of the first connection that a server answered.
func (c *client) first(server string, from time.Time) time.Duration {
	l := c.since(from)
	i := slices.IndexFunc(l, func(a answer) bool { return a.server == server })
	require.GreaterOrEqual(c.w, i, 0)
	return l[i].at.Sub(from)
}

// failed returns the number of failed connections since a moment, and the number of all.
func (c *client) failed(from time.Time) (failed, all int) {
	l := c.since(from)
	for _, a := range l {
		if a.server == "" {
			failed++
		}
	}

	return failed, len(l)
}

func has(l []answer, server string) bool {
	return slices.ContainsFunc(l, func(a answer) bool { return a.server == server })
}
