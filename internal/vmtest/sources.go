package vmtest

import (
	"bufio"
	"fmt"
	"slices"
	"strings"
)

// aptSource is one entry of apt's sources: sources.list(5).
type aptSource struct {
	URIs       []string
	Suites     []string
	Components []string
	// Options are the remaining fields, "name: value" without a newline at the
	// end; a value of several lines keeps its line breaks.
	Options []string
}

// debianSuites are the names under which a mirror offers a suite of Debian.
var debianSuites = []string{
	"buster", "bullseye", "bookworm", "trixie", "forky", "duke", "sid",
	"oldoldstable", "oldstable", "stable", "testing", "unstable",
}

// suiteParts are what may follow a suite's name that we want of another suite as
// well. Backports are left out: they would bring another series.
var suiteParts = []string{"", "-updates", "-security"}

// dropOptions are fields that deriveSources sets itself, or that would restrict
// the entry to another purpose.
var dropOptions = []string{
	"types", "uris", "suites", "components", "enabled",
	"architectures", "arch", "languages", "lang", "targets", "target",
}

// parseDeb822 reads the entries of a .sources file that bring binary packages.
func parseDeb822(text string) []aptSource {
	var out []aptSource
	for _, stanza := range stanzas(text) {
		field := func(name string) []string { return strings.Fields(stanza.get(name)) }
		if !slices.Contains(field("types"), "deb") || strings.EqualFold(stanza.get("enabled"),
			"no") {
			continue
		}
		s := aptSource{URIs: field("uris"), Suites: field("suites"),
			Components: field("components")}
		for _, f := range stanza {
			if !slices.Contains(dropOptions, strings.ToLower(f.name)) {
				s.Options = append(s.Options, f.name+": "+f.value)
			}
		}
		out = append(out, s)
	}
	return out
}

// parseOneLine reads the entries of a .list file that bring binary packages:
//
//	deb [ option=value ... ] uri suite component ...
func parseOneLine(text string) []aptSource {
	var out []aptSource
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		rest, ok := strings.CutPrefix(strings.TrimSpace(line), "deb")
		if !ok || strings.TrimLeft(rest, " \t") == rest {
			continue
		}
		rest = strings.TrimSpace(rest)
		var s aptSource
		if inner, ok := strings.CutPrefix(rest, "["); ok {
			options, after, found := strings.Cut(inner, "]")
			if !found {
				continue
			}
			for _, o := range strings.Fields(options) {
				name, value, _ := strings.Cut(o, "=")
				if !slices.Contains(dropOptions, strings.ToLower(name)) {
					s.Options = append(s.Options, name+": "+value)
				}
			}
			rest = after
		}
		if words := strings.Fields(rest); len(words) >= 3 {
			s.URIs, s.Suites, s.Components = words[:1], words[1:2], words[2:]
			out = append(out, s)
		}
	}
	return out
}

// deriveSources turns the machine's sources into a .sources file for another
// suite: the entries for a Debian suite, with that suite's name replaced. What
// follows from it:
//   - mirrors, proxies and keys are the machine's own;
//   - sources of others, which know only their own suites, are left out;
//   - sid has neither updates nor a security suite.
//
// It is empty when the machine has no source for Debian.
func deriveSources(sources []aptSource, suite string) string {
	var out []string
	for _, s := range sources {
		uris := slices.DeleteFunc(slices.Clone(s.URIs), func(u string) bool {
			return strings.HasPrefix(u, "cdrom:")
		})
		var suites []string
		for _, name := range s.Suites {
			part, ok := suitePart(name)
			if !ok || (suite == "sid" && part != "") || slices.Contains(suites, suite+part) {
				continue
			}
			suites = append(suites, suite+part)
		}
		if len(uris) == 0 || len(suites) == 0 || !slices.Contains(s.Components, "main") {
			continue
		}
		entry := fmt.Sprintf(
			"Types: deb\nURIs: %s\nSuites: %s\nComponents: main\nTargets: Packages\n",
			strings.Join(uris, " "), strings.Join(suites, " "))
		for _, o := range s.Options {
			entry += o + "\n"
		}
		if !slices.Contains(out, entry) {
			out = append(out, entry)
		}
	}
	return strings.Join(out, "\n")
}

// suitePart returns what follows the name of a Debian suite.
func suitePart(name string) (string, bool) {
	for _, s := range debianSuites {
		if part, ok := strings.CutPrefix(name, s); ok && slices.Contains(suiteParts, part) {
			return part, true
		}
	}
	return "", false
}

// field is one field of a paragraph in Debian's control format.
type field struct{ name, value string }

type paragraph []field

// get returns the value of a field, "" when there is none. Names of fields have
// no case.
func (p paragraph) get(name string) string {
	for _, f := range p {
		if strings.EqualFold(f.name, name) {
			return f.value
		}
	}
	return ""
}

// stanzas splits text in Debian's control format, deb822(5), which is that of
// .sources files and of apt-cache's answers. Lines that do not fit are skipped.
func stanzas(text string) []paragraph {
	var out []paragraph
	var current paragraph
	end := func() {
		if len(current) > 0 {
			out = append(out, current)
			current = nil
		}
	}
	lines := bufio.NewScanner(strings.NewReader(text))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		switch {
		case strings.TrimSpace(line) == "":
			end()
		case line[0] == '#':
		case line[0] == ' ' || line[0] == '\t':
			if len(current) > 0 {
				last := &current[len(current)-1]
				last.value += "\n" + line
			}
		default:
			if name, value, ok := strings.Cut(line, ":"); ok && name != "" {
				current = append(current, field{name, strings.TrimSpace(value)})
			}
		}
	}
	end()
	return out
}
