package vmtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// apt is a private instance of Debian's package tool: the sources of one suite,
// lists and caches in a directory of its own. Proxies, credentials and keys are
// the machine's. It installs nothing and changes nothing outside its directory.
type apt struct {
	suite string
	dir   string
	// updateErr is what the update said. It is no failure in itself, since one
	// mirror among several may lack the suite.
	updateErr error
}

// newAPT sets up an instance below dir and fetches the suite's package lists.
func newAPT(ctx context.Context, dir, suite string) (*apt, error) {
	sources, err := suiteSources(suite)
	if err != nil {
		return nil, err
	}
	for _, d := range []string{"lists/partial", "cache/archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return nil, fmt.Errorf("set up apt for %s: %w", suite, err)
		}
	}
	machine, err := command{Name: "apt-config", Args: []string{"dump"}}.output(ctx)
	if err != nil {
		return nil, err
	}
	for name, text := range map[string]string{
		"suite.sources": sources,
		"apt.conf":      aptConfig(machine, dir),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			return nil, fmt.Errorf("set up apt for %s: %w", suite, err)
		}
	}
	a := &apt{suite: suite, dir: dir}
	if _, err := a.run(ctx, "", "apt-get", "update"); err != nil {
		if errors.Is(err, ErrMissing) || ctx.Err() != nil {
			return nil, err
		}
		a.updateErr = err
	}
	return a, nil
}

// suiteSources returns the text of the .sources file for a suite: a file that the
// user gave in $KERNLB_VM_SOURCES, or one derived from the machine's sources.
func suiteSources(suite string) (string, error) {
	if dir := os.Getenv("KERNLB_VM_SOURCES"); dir != "" {
		text, err := os.ReadFile(filepath.Join(dir, suite+".sources"))
		if err == nil {
			return string(text), nil
		}
		if !errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("read the apt sources of %s: %w", suite, err)
		}
	}
	sources, err := machineSources("/etc/apt")
	if err != nil {
		return "", err
	}
	text := deriveSources(sources, suite)
	if text == "" {
		return "", &MissingError{
			What: fmt.Sprintf("an apt source of Debian in /etc/apt to derive the suite %s from",
				suite),
			Err: fmt.Errorf("give one as $KERNLB_VM_SOURCES/%s.sources", suite),
		}
	}
	return text, nil
}

// machineSources reads sources.list and sources.list.d below dir.
func machineSources(dir string) ([]aptSource, error) {
	files := []string{filepath.Join(dir, "sources.list")}
	for _, pattern := range []string{"*.list", "*.sources"} {
		more, err := filepath.Glob(filepath.Join(dir, "sources.list.d", pattern))
		if err != nil {
			return nil, fmt.Errorf("list apt sources: %w", err)
		}
		files = append(files, more...)
	}
	var out []aptSource
	for _, f := range files {
		text, err := os.ReadFile(f)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("read apt sources: %w", err)
		}
		if strings.HasSuffix(f, ".sources") {
			out = append(out, parseDeb822(string(text))...)
		} else {
			out = append(out, parseOneLine(string(text))...)
		}
	}
	return out, nil
}

// machineOnly are the parts of apt's configuration that must not be taken over:
// where things are, for which architectures, and commands to run after an update or
// an installation.
var machineOnly = regexp.MustCompile(`^(?i)(dir|dpkg|apt::(update|periodic|architectures?))(::| )`)

// aptConfig makes a configuration from the machine's, as apt-config dump prints
// it, with everything that apt writes moved below dir.
func aptConfig(machine, dir string) string {
	var b strings.Builder
	for line := range strings.Lines(machine) {
		if !machineOnly.MatchString(line) && strings.HasSuffix(strings.TrimSpace(line), ";") {
			b.WriteString(line)
		}
	}
	for _, o := range [][2]string{
		{"Dir::Etc::Main", "/dev/null"},
		{"Dir::Etc::Parts", "/dev/null"},
		{"Dir::Etc::SourceList", filepath.Join(dir, "suite.sources")},
		{"Dir::Etc::SourceParts", "/dev/null"},
		{"Dir::Etc::Preferences", "/dev/null"},
		{"Dir::Etc::PreferencesParts", "/dev/null"},
		{"Dir::State::Lists", filepath.Join(dir, "lists") + "/"},
		{"Dir::State::Status", "/dev/null"},
		{"Dir::Cache", filepath.Join(dir, "cache") + "/"},
		{"Dir::Log", filepath.Join(dir, "cache") + "/"},
		{"APT::Architecture", "amd64"},
		{"APT::Architectures::", "amd64"},
		// The directory may not be reachable for the user that apt would change to.
		{"APT::Sandbox::User", "root"},
		// A suite that has moved to the archive is never signed again.
		{"Acquire::Check-Valid-Until", "false"},
		{"Acquire::Languages", "none"},
		{"Acquire::Retries", "3"},
	} {
		fmt.Fprintf(&b, "%s %q;\n", o[0], o[1])
	}
	return b.String()
}

func (a *apt) run(ctx context.Context, dir, name string, args ...string) (string, error) {
	return command{
		Name: name, Args: args, Dir: dir,
		Env: []string{"APT_CONFIG=" + filepath.Join(a.dir, "apt.conf")},
	}.output(ctx)
}

// debPackage is one version of a binary package.
type debPackage struct {
	Name, Version string
	// Depends are the names of the packages it depends on; of alternatives the
	// first.
	Depends []string
}

// show returns the newest version of a package in the suite.
func (a *apt) show(ctx context.Context, name string) (debPackage, error) {
	text, err := a.run(ctx, "", "apt-cache", "show", "--no-all-versions", name)
	if err == nil {
		for _, s := range stanzas(text) {
			if s.get("Package") == name {
				return debPackage{name, s.get("Version"), dependencies(s.get("Depends"))}, nil
			}
		}
		err = fmt.Errorf("apt-cache show %s: no such package", name)
	}
	if errors.Is(err, ErrMissing) || ctx.Err() != nil {
		return debPackage{}, err
	}
	return debPackage{}, &MissingError{
		What: fmt.Sprintf(
			"the package %s of Debian %s: no network, or the machine's mirror does not have that "+
				"suite", name, a.suite),
		Err: errors.Join(err, a.updateErr),
	}
}

// dependencies returns the names in a Depends field.
func dependencies(field string) []string {
	var out []string
	for _, item := range strings.Split(field, ",") {
		first, _, _ := strings.Cut(item, "|")
		if words := strings.Fields(first); len(words) > 0 {
			name, _, _ := strings.Cut(words[0], ":")
			out = append(out, name)
		}
	}
	return out
}

// download fetches packages into dir, which apt checks against the signed lists,
// and unpacks them below root.
func (a *apt) download(ctx context.Context, dir, root string, packages []debPackage) error {
	args := []string{"download"}
	for _, p := range packages {
		args = append(args, p.Name+"="+p.Version)
	}
	if _, err := a.run(ctx, dir, "apt-get", args...); err != nil {
		if errors.Is(err, ErrMissing) || ctx.Err() != nil {
			return err
		}
		return &MissingError{What: fmt.Sprintf("a download of %s from Debian %s",
			strings.Join(args[1:], " "), a.suite), Err: err}
	}
	files, err := filepath.Glob(filepath.Join(dir, "*.deb"))
	if err != nil {
		return fmt.Errorf("list downloaded packages: %w", err)
	}
	for _, f := range files {
		if _, err := (command{Name: "dpkg-deb", Args: []string{"-x", f, root}}).output(
			ctx); err != nil {
			return fmt.Errorf("unpack %s: %w", filepath.Base(f), err)
		}
		if err := os.Remove(f); err != nil {
			return fmt.Errorf("remove a package that is unpacked: %w", err)
		}
	}
	return nil
}
