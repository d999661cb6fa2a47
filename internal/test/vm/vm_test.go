package vmtest

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// The tests in this file boot virtual machines. They run on 6.1; the first one on
// every kernel in $KERNLB_VM_KERNELS too (series separated by spaces, or "all").
// They are not parallel: an emulated machine fills two processors.

// guestTools are run by the guest's TestHostTools, each with a harmless command.
var guestTools = map[string]string{
	"ipvsadm":              "ipvsadm -Ln",
	"nft":                  "nft list ruleset",
	"iptables":             "iptables -t nat -S",
	"iptables-legacy":      "iptables-legacy -t nat -A POSTROUTING -j MASQUERADE",
	"iptables-legacy-save": "iptables-legacy-save",
	"conntrack":            "conntrack -L",
	"ip":                   "ip -V",
}

// needVM skips a test if the machine cannot run a VM.
func needVM(t *testing.T) {
	t.Helper()
	if testing.Short() || os.Getenv("KERNLB_TEST_VM") == "none" {
		t.Skip("booting a VM takes seconds: make test-api does")
	}
	if runtime.GOOS != "linux" || runtime.GOARCH != "amd64" {
		t.Skipf("a VM needs a Debian machine on linux/amd64; this is %s/%s", runtime.GOOS,
			runtime.GOARCH)
	}
}

// run is Run, but skips the test if the machine lacks something that Run needs.
func run(t *testing.T, o Options) (Result, error) {
	t.Helper()
	o.Log = slog.New(slog.NewTextHandler(os.Stderr, nil))
	o.Init = filepath.Join(t.TempDir(), "guestinit")
	_, err := goCommand(t.Context(), "", "build", "-o", o.Init, "./cmd/guestinit")
	require.NoError(t, err)
	result, err := Run(t.Context(), o)
	if errors.Is(err, ErrMissing) {
		t.Skip(err)
	}
	t.Logf("kernel %s: boot %v, power-on to power-off %v", result.Kernel.Release,
		result.Boot.Round(10*time.Millisecond), result.Duration.Round(10*time.Millisecond))
	return result, err
}

// build compiles the tests of a package below testdata.
func build(t *testing.T, name string) Program {
	t.Helper()
	programs, err := Build(t.Context(), BuildOptions{Packages: []string{"./testdata/" + name},
		Out: t.TempDir()})
	if errors.Is(err, ErrMissing) {
		t.Skip(err)
	}
	require.NoError(t, err)
	require.Len(t, programs, 1)
	return programs[0]
}

// misbehave returns the program that runs one test of testdata/misbehave.
func misbehave(t *testing.T, test string) Program {
	t.Helper()
	return only(build(t, "misbehave"), test)
}

func only(p Program, test string) Program {
	p.Name, p.Args = test, []string{"-test.v", "-test.run=^" + test + "$"}
	return p
}

func kernels() []string {
	out := []string{"6.1"}
	want := strings.Fields(os.Getenv("KERNLB_VM_KERNELS"))
	for _, r := range Releases() {
		if (slices.Contains(want, r.Name) || slices.Contains(want, "all")) && r.Name != out[0] {
			out = append(out, r.Name)
		}
	}

	return out
}

func TestGuestIsWhatProgramsArePromised(t *testing.T) {
	needVM(t)
	p := build(t, "guesttest")
	p.Args = []string{"-test.v"}
	var tools, commands []string
	for tool, line := range guestTools {
		if _, err := exec.LookPath(tool); err != nil {
			t.Logf("not tried in the guest: %v", err)
			continue
		}

		tools, commands = append(tools, tool), append(commands, line)
	}

	slices.Sort(commands)
	p.Env = []string{"GUESTTEST_TOOLS=" + strings.Join(commands, "\n")}
	for _, kernel := range kernels() {
		t.Run(kernel, func(t *testing.T) {
			var output bytes.Buffer
			result, err := run(t, Options{
				Kernel: kernel, Programs: []Program{p}, Tools: tools, Output: &output,
			})
			require.NoError(t, err, "%s", &output)
			require.Len(t, result.Programs, 1)
			require.Zero(t, result.Programs[0].ExitCode)
			require.Greater(t, len(result.Programs[0].Tests.Passed), 5, "%s", &output)
			require.Empty(t, result.Programs[0].Tests.Failed)
			require.Contains(t, output.String(), "--- PASS: TestNftables")
		})
	}
}

func TestEachProgramHasItsOwnVerdict(t *testing.T) {
	needVM(t)
	p := build(t, "misbehave")
	var output bytes.Buffer
	o := Options{Kernel: "6.1", Output: &output}
	for _, test := range []string{"TestFail", "TestKilled", "TestOrphan", "TestFlood"} {
		o.Programs = append(o.Programs, only(p, test))
	}
	result, err := run(t, o)
	require.ErrorIs(t, err, ErrTestsFailed)
	require.ErrorContains(t, err, "TestFail (exit code 1)")
	require.ErrorContains(t, err, "TestKilled (exit code 137)")
	var codes []int
	for _, r := range result.Programs {
		codes = append(codes, r.ExitCode)
		t.Logf("%s took %v in the guest", r.Name, r.Duration)
	}

	require.Equal(t, []int{1, 137, 0, 0}, codes)
	require.Equal(t, []string{"TestFail"}, result.Programs[0].Tests.Failed)
	require.Contains(t, output.String(), "this test fails on purpose")
	require.Equal(t, 5000, strings.Count(output.String(), "TestNotReal"),
		"no line of a flood is lost")
	require.Contains(t, output.String(), "\n4999 --- FAIL")
}

func TestAKernelPanicIsAnError(t *testing.T) {
	needVM(t)
	result, err := run(t, Options{Kernel: "6.1", Programs: []Program{misbehave(t, "TestPanic")}})
	require.ErrorIs(t, err, ErrPanic)
	require.ErrorContains(t, err, "sysrq triggered crash")
	require.Contains(t, result.KernelLog, panicText)
	require.Empty(t, result.Programs)
}

func TestAHungProgramIsATimeout(t *testing.T) {
	needVM(t)

	// The program stops itself, so its own limit cannot end it.
	_, err := run(t, Options{Kernel: "6.1", Programs: []Program{misbehave(t, "TestHang")},
		Timeout: time.Second})
	require.ErrorIs(t, err, ErrTimeout)
	require.ErrorContains(t, err, "the programs were not done in 1s")
}

func TestAHungBootIsATimeout(t *testing.T) {
	needVM(t)
	_, err := run(t, Options{Kernel: "6.1", BootTimeout: time.Millisecond})
	require.ErrorIs(t, err, ErrTimeout)
	require.ErrorContains(t, err, "init did not start in 1ms")
}

func TestRunSaysWhatIsWrongBeforeItBoots(t *testing.T) {
	t.Parallel()
	_, err := Run(t.Context(), Options{Kernel: "3.2"})
	require.ErrorIs(t, err, ErrUnknownKernel)
	if _, err := findProgram(qemuProgram, qemuPackage); err != nil {
		t.Skip(err)
	}
	_, err = Run(t.Context(), Options{Kernel: "6.1"})
	require.ErrorIs(t, err, ErrMissing)
	require.ErrorContains(t, err, "the guest's init program")
	_, err = Run(t.Context(), Options{Kernel: "6.1", Init: os.Args[0],
		Tools: []string{"no-such-tool"}})
	require.ErrorIs(t, err, ErrMissing)
	require.ErrorContains(t, err, "no-such-tool")
}
