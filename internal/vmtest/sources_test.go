package vmtest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const deb822 = `Types: deb
# a comment
URIs: http://mirror.example/debian
Suites: bookworm bookworm-updates bookworm-backports
Components: main contrib
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb deb-src
URIs: http://mirror.example/debian-security
Suites: bookworm-security
Components: main
Signed-By:
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc

Types: deb
URIs: http://other.example/debian
Suites: bookworm
Components: main
Enabled: no

Types: deb-src
URIs: http://mirror.example/debian
Suites: bookworm
Components: main

Types: deb
URIs: http://node.example
Suites: nodistro
Components: main
`

const oneLine = `# deb cdrom:[Debian]/ bookworm main
deb cdrom:[Debian]/ bookworm main
deb [arch=amd64 signed-by=/usr/share/k.gpg] http://mirror.example/debian bookworm main # ours
deb-src http://mirror.example/debian bookworm main
	deb	http://mirror.example/debian-security bookworm-security main
deb http://docker.example/debian bookworm stable
deb http://pgdg.example bookworm-pgdg main
deb [arch=amd64 http://broken.example bookworm main
deb http://short.example bookworm
debhelper is not an entry
`

// derivations are what sources become for another suite.
var derivations = map[string]struct {
	sources     []aptSource
	suite, want string
}{
	"from deb822, a released suite": {parseDeb822(deb822), "trixie", `Types: deb
URIs: http://mirror.example/debian
Suites: trixie trixie-updates
Components: main
Targets: Packages
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: trixie-security
Components: main
Targets: Packages
Signed-By: 
 -----BEGIN PGP PUBLIC KEY BLOCK-----
 .
 abc
`},
	"from deb822, sid has one suite only": {parseDeb822(deb822), "sid", `Types: deb
URIs: http://mirror.example/debian
Suites: sid
Components: main
Targets: Packages
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
`},
	"from lines": {parseOneLine(oneLine), "bullseye", `Types: deb
URIs: http://mirror.example/debian
Suites: bullseye
Components: main
Targets: Packages
signed-by: /usr/share/k.gpg

Types: deb
URIs: http://mirror.example/debian-security
Suites: bullseye-security
Components: main
Targets: Packages
`},
	"suites that fall together are named once": {parseOneLine(`
deb http://mirror.example/debian stable main
deb http://mirror.example/debian testing main
deb http://mirror.example/debian unstable main
`), "sid", `Types: deb
URIs: http://mirror.example/debian
Suites: sid
Components: main
Targets: Packages
`},
	"no Debian at all": {parseOneLine("deb http://ubuntu.example noble main"), "sid", ""},
	"nothing":          {nil, "sid", ""},
}

func TestSourcesAreDerivedForAnotherSuite(t *testing.T) {
	t.Parallel()
	for name, c := range derivations {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, c.want, deriveSources(c.sources, c.suite))
		})
	}
}

func TestReleases(t *testing.T) {
	t.Parallel()
	for _, want := range Releases() {
		for _, name := range []string{want.Name, want.Suite} {
			got, err := FindRelease(name)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	}
	_, err := FindRelease("4.19")
	require.ErrorIs(t, err, ErrUnknownKernel)
	require.ErrorContains(t, err, `"4.19": known are 5.10, bullseye,`)

	for _, c := range []struct {
		series, kernel string
		want           bool
	}{
		{"6.1", "6.1.0-56-cloud-amd64", true},
		{"6.1", "6.12.117+deb13-cloud-amd64", false},
		{"6.12", "6.12.117+deb13-cloud-amd64", true},
		{"7.x", "7.2.13+deb14-cloud-amd64", true},
		{"7.x", "8.0.1-cloud-amd64", false},
	} {
		require.Equal(t, c.want, Release{Name: c.series}.matches(c.kernel), "%s %s", c.series,
			c.kernel)
	}
}

func FuzzSources(f *testing.F) {
	f.Add(deb822)
	f.Add(oneLine)
	f.Fuzz(func(t *testing.T, text string) {
		for _, sources := range [][]aptSource{parseDeb822(text), parseOneLine(text)} {
			derived := deriveSources(sources, "trixie")
			for _, s := range parseDeb822(derived) {
				for _, suite := range s.Suites {
					if !strings.HasPrefix(suite, "trixie") {
						t.Fatalf("derived sources still name %q", suite)
					}
				}
			}
		}
	})
}
