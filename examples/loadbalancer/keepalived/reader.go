package keepalived

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/kernlb/kernlb/examples/loadbalancer/config"
)

// Config says how a configuration is read. Nil means the zero value.
type Config struct {
	// ID is what conditions (@ID) are compared with, and the value of ${_INSTANCE}: the argument
	// of keepalived's -i, or else the name of the host up to its first dot. Without it, a condition
	// in a virtual server or outside of all blocks is an error.
	ID string
	// Include allows that the files that an include names are read. Without it, include is an
	// error.
	Include bool
}

// Bounds of what a configuration can ask for.
const (
	maxNested = 20      // files within files, and values of several lines within each other
	maxLine   = 1024    // bytes of a line with values in it, as in keepalived
	maxValues = 100     // values in a line
	maxLines  = 1 << 16 // lines of all files and values
)

// position is the file and number of a line. The number is 0 if it is not known.
type position struct {
	file string
	line int
}

// line is a line without its comment.
type line struct {
	position
	text string
}

// value is the value of a parameter.
type value struct {
	lines []string
	// several says that it was written in the form for several lines. Then the parameter must end
	// the line in which it is used.
	several bool
}

// reader reads the lines of a configuration as keepalived does (read_line in lib/parser.c). It adds
// the lines of included files, drops lines whose condition is false, and replaces parameters by
// their values.
type reader struct {
	Config
	values map[string]*value // by the names of parameters
	open   *value            // the value that continues in the next line
	files  map[string]int    // the files, numbered in the order in which they were first read
	count  int
	lines  []line
	notes  []*config.FieldError // warnings
	// elsewhere are the places of definitions whose condition did not hold, by parameters.
	elsewhere map[string][]string
}

// newReader returns a reader with the parameters that keepalived defines, except ${_RANDOM}.
func newReader(c *Config) *reader {
	r := &reader{files: map[string]int{}, elsewhere: map[string][]string{},
		values: map[string]*value{"_HASH": oneLine("#"), "_BANG": oneLine("!")}}
	if c != nil {
		r.Config = *c
	}
	if r.ID != "" {
		r.values["_INSTANCE"] = oneLine(r.ID)
	}
	return r
}

func oneLine(text string) *value { return &value{lines: []string{text}} }

// read reads the text of a file, which is included so many times. An error is a
// *[config.FieldError].
func (r *reader) read(name, text string, depth int) error {
	if _, again := r.files[name]; !again {
		r.files[name] = len(r.files)
	}
	r.open = nil
	where := position{file: name}
	for content := range strings.Lines(text) {
		where.line++
		if strings.TrimRight(content, "\r\n") == "" { // it ends a value of several lines
			r.open = nil
			continue
		}

		if err := r.readLine(content, where, depth); err != nil {
			return where.of("", err)
		}
	}

	return nil
}

// of adds the position to an error that has none.
func (p position) of(keyword string, err error) error {
	if has := (*config.FieldError)(nil); err == nil || errors.As(err, &has) {
		return err
	}
	return &config.FieldError{File: p.file, Line: p.line, Path: keyword, Err: err}
}

// readLine reads one line of a file.
func (r *reader) readLine(content string, where position, depth int) error {
	content = strings.TrimSpace(content)
	body, more := strings.CutSuffix(content, `\`)
	if more = more && (r.open != nil || continues.MatchString(content)); !more {
		body = content
	}
	text, err := uncomment(strings.TrimSpace(body))
	switch {
	case err != nil || text == "" && !more:
		return err
	case r.open != nil:
		if text != "" {
			r.open.lines = append(r.open.lines, text)
		}
		if !more {
			r.open = nil
		}
		return nil
	}

	if m := include.FindStringSubmatch(text); m != nil {
		return where.of(m[1], r.include(m[1], m[2], where, depth))
	}
	r.values["_PWD"] = oneLine(filepath.Dir(where.file))
	return r.expand(line{where, text}, more, 0)
}

// include matches an include. Its variants demand that a file matches.
var include = regexp.MustCompile(`^(include[rmwba]?)\s+(.*)$`)

// include reads the files that a pattern matches, which is relative to the file that has it.
func (r *reader) include(keyword, pattern string, where position, depth int) error {
	switch {
	case !r.Include:
		return errors.New("no other file is read")
	case strings.Contains(pattern, "{"):
		return errors.New("braces in a pattern cannot be read: write an include for each name")
	case depth == maxNested:
		return fmt.Errorf("more than %d files within files", maxNested)
	}

	if !filepath.IsAbs(pattern) {
		pattern = filepath.Join(filepath.Dir(where.file), pattern)
	}
	names, err := filepath.Glob(pattern)
	if err != nil {
		return err
	}
	if len(names) == 0 {
		err := fmt.Errorf("no file matches %s", pattern)
		if keyword != "include" {
			return err
		}
		r.notes = append(r.notes,
			&config.FieldError{File: where.file, Line: where.line, Path: keyword, Err: err})
	}

	for _, name := range names {
		if info, err := os.Stat(name); err == nil && info.IsDir() {
			continue
		}
		text, err := os.ReadFile(name)
		if err == nil {
			err = r.read(name, string(text), depth+1)
		}
		if err != nil {
			return err
		}
	}

	return nil
}

// defines matches the definition of a parameter. continues matches a line with a definition whose
// value may continue in the next line.
var (
	defines   = regexp.MustCompile(`^\$([A-Za-z_]\w*)=[ \t]*(.*)$`)
	continues = regexp.MustCompile(`^(@\S+[ \t]+)?\$[A-Za-z_]\w*=`)
)

// expand adds a line: nothing if its condition does not hold or if it defines a parameter, and
// several lines if it has a parameter whose value has several. With more, the value that the line
// defines continues in the next line.
func (r *reader) expand(l line, more bool, depth int) error {
	if r.count++; r.count > maxLines {
		return fmt.Errorf("more than %d lines", maxLines)
	}
	if depth > maxNested {
		return fmt.Errorf("more than %d values within values", maxNested)
	}
	for range maxValues {
		var holds bool
		condition := l.text
		if l.text, holds = r.condition(l.text); !holds {
			if m := defines.FindStringSubmatch(l.text); m != nil {
				r.elsewhere[m[1]] = append(r.elsewhere[m[1]], fmt.Sprintf("%s (line %d)",
					strings.Fields(condition)[0], l.line))
			}
			return nil
		}
		if m := defines.FindStringSubmatch(l.text); m != nil {
			v := oneLine(m[2])
			if more {
				v.several, r.open = true, v
			}
			if m[2] == "" {
				v.lines = nil
			}
			r.values[m[1]] = v
			return nil
		}

		text, rest, found := r.substitute(l.text)
		switch {
		case len(text) > maxLine && found:
			return fmt.Errorf("with the values in it, the line is longer than %d bytes", maxLine)
		case found && len(rest) > 0:
			for _, text := range append([]string{text}, rest...) {
				if err := r.expand(line{l.position, text}, false, depth+1); err != nil {
					return err
				}
			}

			return nil
		case !found:
			r.lines = append(r.lines, l)
			return nil
		}

		var err error
		if l.text, err = uncomment(strings.TrimSpace(text)); err != nil || l.text == "" {
			return err
		}
	}

	return fmt.Errorf("more than %d values in a line", maxValues)
}

// condition returns a line without its condition, and whether that holds. Without an ID, it returns
// the line as it is.
func (r *reader) condition(text string) (rest string, holds bool) {
	if r.ID == "" || !strings.HasPrefix(text, "@") {
		return text, true
	}
	id, rest := text[1:], ""
	if i := strings.IndexAny(id, " \t"); i >= 0 {
		id, rest = id[:i], strings.TrimLeft(id[i:], " \t")
	}
	id, not := strings.CutPrefix(id, "^")
	return rest, rest != "" && (id == r.ID) != not
}

// parameter matches the use of a parameter: with braces, or before certain characters.
var parameter = regexp.MustCompile(`\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*)(?:[ \t,)]|$))`)

// substitute replaces the first parameter of a line that has a value. It returns the other lines of
// the value, too.
func (r *reader) substitute(text string) (now string, rest []string, found bool) {
	for from := 0; ; {
		m := parameter.FindStringSubmatchIndex(text[from:])
		if m == nil {
			return text, nil, false
		}
		start, end, name := from+m[0], 0, ""
		if m[2] >= 0 {
			name, end = text[from+m[2]:from+m[3]], from+m[3]+1
		} else {
			name, end = text[from+m[4]:from+m[5]], from+m[5]
		}

		v := r.values[name]
		if v == nil || v.several && len(v.lines) > 0 && end < len(text) {
			from = start + 1
			continue
		}

		lines := v.lines
		if len(lines) == 0 {
			lines = []string{""}
		}
		return text[:start] + lines[0] + text[end:], lines[1:], true
	}
}

// unused matches what looks like a parameter.
var unused = regexp.MustCompile(`\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))`)

// undefined says why a parameter in a text was not replaced. It is empty if the text has none.
func (r *reader) undefined(text string) string {
	m := unused.FindStringSubmatch(text)
	if m == nil {
		return ""
	}
	name := m[1] + m[2]
	switch places := r.elsewhere[name]; {
	case r.values[name] != nil && m[2] != "":
		return fmt.Sprintf("; write ${%s} for the parameter $%s", name, name)
	case len(places) > 0:
		return fmt.Sprintf("; no such parameter for -i %s: it is defined for %s", r.ID,
			strings.Join(places, ", "))
	}

	return fmt.Sprintf("; there is no parameter $%s", name)
}
