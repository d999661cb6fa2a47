package manifest

//lint:file-ignore SA1019 Endpoints are deprecated, yet people have manifests with them

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"reflect"
	"unicode/utf8"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"

	"github.com/kernlb/kernlb/servicemodel/kube"
)

// Limits of what is read, in bytes.
const (
	MaxSize = 256 << 20 // of a file
	MaxYAML = 16 << 20  // of one YAML document
)

// Objects takes what a [Loader] reads. A [kube.Tracker] does.
type Objects interface {
	SetService(*corev1.Service) []kube.Problem
	SetEndpoints(*corev1.Endpoints) []kube.Problem
	SetEndpointSlice(*discoveryv1.EndpointSlice) []kube.Problem
	SetNode(*corev1.Node) []kube.Problem
	SetServiceCIDR(*networkingv1.ServiceCIDR) []kube.Problem
	Unmatched() []kube.Problem
}

// Loader reads manifests into a tracker.
type Loader struct {
	objects Objects
	decoder decoder
	seen    map[string]spot // where each object was given last
	maxSize int64
	result  Result
}

// NewLoader returns a loader that gives what it reads to t. A tracker should be strict (see
// [kube.Config]).
func NewLoader(t Objects) *Loader {
	return &Loader{
		objects: t,
		decoder: decoder{names: map[reflect.Type]map[string][]int{}},
		seen:    map[string]spot{},
		maxSize: MaxSize,
		result:  Result{Skipped: map[string]int{}},
	}
}

// Result returns what was read so far.
func (l *Loader) Result() Result { return l.result }

// ReadFile reads the file of that name. What is wrong in it becomes part of the [Result]; the error
// says that it cannot be read at all.
func (l *Loader) ReadFile(name string) error {
	f, err := os.Open(name)
	if err != nil {
		return fmt.Errorf("reading manifest: %w", err)
	}
	defer f.Close()
	return l.Read(name, f)
}

// Read reads r to its end, as ReadFile does. The name stands for it in problems.
func (l *Loader) Read(name string, r io.Reader) error {
	data, err := io.ReadAll(io.LimitReader(r, l.maxSize+1))
	if err != nil {
		return fmt.Errorf("reading manifest %s: %w", name, err)
	}
	if p, ok := l.notText(data); !ok {
		p.File, p.Severity = name, kube.Error
		l.result.Problems = append(l.result.Problems, p)
		return nil
	}
	if len(bytes.TrimSpace(bytes.TrimPrefix(data, []byte(byteOrderMark)))) == 0 {
		l.problem(place{file: name}, 1, "", "", "", "the file is empty")
		return nil
	}
	for i, d := range split(data) {
		at := place{name, i + 1}
		values, err := parse(d)
		if err != nil {
			l.unreadable(at, err)
			continue
		}
		for _, v := range values {
			if v.kind != nullValue { // templates that had nothing to say leave these behind
				l.value(at, v, 0)
			}
		}
	}
	return nil
}

// Unmatched returns the warnings of [kube.Tracker.Unmatched], about objects that were read. It is
// for when all files were.
func (l *Loader) Unmatched() []Problem { return located(l.objects.Unmatched(), l.seen) }

// located says where the objects of problems are, by their names.
func located(problems []kube.Problem, at map[string]spot) []Problem {
	var out []Problem
	for _, p := range problems {
		s := at[p.Object]
		out = append(out, Problem{File: s.file, Line: s.line, Document: s.document,
			Severity: p.Severity, Object: p.Object, Field: p.Field, Value: p.Value,
			Reason: p.Reason})
	}
	return out
}

// place is where a value was found.
type place struct {
	file     string
	document int
}

// spot is where an object begins.
type spot struct {
	place
	line int
}

// notText says why data is not the text of a manifest.
func (l *Loader) notText(data []byte) (Problem, bool) {
	lineAt := func(i int) int { return 1 + bytes.Count(data[:i], []byte("\n")) }
	if int64(len(data)) > l.maxSize {
		return Problem{Line: lineAt(len(data)), Reason: fmt.Sprintf("larger than %d bytes",
			l.maxSize)}, false
	}
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return Problem{Line: lineAt(i), Reason: "not text: it contains a NUL byte"}, false
	}
	if i := firstInvalid(data); i >= 0 {
		return Problem{Line: lineAt(i), Reason: "not text: it is not valid UTF-8"}, false
	}
	return Problem{}, true
}

// firstInvalid returns where data stops being UTF-8, -1 if it does not.
func firstInvalid(data []byte) int {
	if utf8.Valid(data) { // many times faster
		return -1
	}
	i := 0
	for i < len(data) {
		r, n := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && n == 1 {
			return i
		}
		i += n
	}
	return -1
}

// parse reads the values of a document: one of YAML, any number of JSON.
func parse(d document) ([]*value, error) {
	text := bytes.TrimSpace(d.text)
	isJSON := len(text) > 0 && (text[0] == '{' || text[0] == '[')
	if isJSON {
		values, err := parseJSON(d)
		if err == nil {
			return values, nil
		}
		// Flow style YAML looks alike, but for the quote that begins each name.
		if rest := bytes.TrimSpace(text[1:]); len(rest) == 0 || rest[0] == '"' || rest[0] == '{' {
			return nil, err
		}
	}
	v, err := parseYAML(d)
	if v == nil || err != nil {
		return nil, err
	}
	return []*value{v}, nil
}
