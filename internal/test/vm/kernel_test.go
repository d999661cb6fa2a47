package vmtest

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const deb822 = `Types: deb
# a comment
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates bookworm-backports
Components: main contrib
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc

Types: deb deb-src
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main

Types: deb
URIs: http://other.example/debian
Suites: bookworm
Enabled: no

Types: deb-src
URIs: http://mirror.example/debian
Suites: bookworm

Types: deb
URIs: http://node.example
Suites: nodistro
`

const oneLine = `deb cdrom:[Debian]/ bookworm main
deb [arch=amd64 signed-by=/usr/share/k.gpg] http://mirror.example/debian bookworm main # ours
deb-src http://mirror.example/debian bookworm main
deb	http://mirror.example/debian-security bookworm-security main
deb http://docker.example/debian bookworm stable
deb http://pgdg.example bookworm-pgdg main
deb http://mirror.example/debian-security stable-security main
`

// Mirrors and keys are the machine's own; sources of other archives, and backports, are left out.
func TestSourcesAreDerivedForAnotherSuite(t *testing.T) {
	for name, c := range map[string]struct{ file, text, suite, want string }{
		"from deb822": {"sources.list.d/debian.sources", deb822, "trixie", `Types: deb
URIs: http://mirror.example/debian
Suites: trixie trixie-updates
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
Components: main
Targets: Packages

Types: deb
URIs: http://mirror.example/debian-security
Suites: trixie-security
Components: main
Targets: Packages
`},
		"sid has one suite": {"sources.list.d/debian.sources", deb822, "sid", `Types: deb
URIs: http://mirror.example/debian
Suites: sid
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
Components: main
Targets: Packages
`},
		"from lines": {"sources.list", oneLine, "bullseye", `Types: deb
URIs: http://mirror.example/debian
Suites: bullseye
signed-by: /usr/share/k.gpg
Components: main
Targets: Packages

Types: deb
URIs: http://mirror.example/debian-security
Suites: bullseye-security
Components: main
Targets: Packages
`},
		"no Debian": {"sources.list", "deb http://ubuntu.example noble main\n", "sid", ""},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			t.Setenv("KERNLB_VM_APT", dir)
			require.NoError(t, os.Mkdir(filepath.Join(dir, "sources.list.d"), 0o755))
			require.NoError(t, os.WriteFile(filepath.Join(dir, c.file), []byte(c.text), 0o600))
			got, err := runScript(t.Context(), t.TempDir(), slog.New(slog.DiscardHandler),
				"sources", c.suite)
			require.NoError(t, err)
			require.Equal(t, c.want, strings.TrimSuffix(got, "\n"))
		})
	}
}

func TestWhatTheMachineLacksIsNamed(t *testing.T) {
	t.Setenv("KERNLB_VM_CACHE", t.TempDir())
	r, err := FindRelease("6.1")
	require.NoError(t, err)
	o := Options{Tools: []string{"no-such-tool"}, Log: slog.New(slog.DiscardHandler)}
	_, err = o.prepare(t.Context(), r, t.TempDir())
	require.ErrorIs(t, err, ErrMissing)
	require.ErrorContains(t, err, "missing: the program no-such-tool")
}

func TestReleases(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"5.10", "bullseye"} {
		r, err := FindRelease(name)
		require.NoError(t, err)
		require.Equal(t, "bullseye", r.Suite)
	}

	_, err := FindRelease("4.19")
	require.ErrorIs(t, err, ErrUnknownKernel)
	require.ErrorContains(t, err, "5.10, bullseye")
}
