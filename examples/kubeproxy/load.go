package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"regexp"
	"strconv"
	"strings"

	yamlv3 "go.yaml.in/yaml/v3"
	"sigs.k8s.io/json"
	"sigs.k8s.io/yaml"
)

// document is a configuration file, with the lines of its fields.
type document struct {
	name string
	text []byte
	root *yamlv3.Node
}

// fileError is an error at a place in a file. Line 0 means that the line is not known.
type fileError struct {
	file string
	line int
	err  error
}

func (e *fileError) Error() string {
	if e.line == 0 {
		return fmt.Sprintf("%s: %v", e.file, e.err)
	}
	return fmt.Sprintf("%s:%d: %v", e.file, e.line, e.err)
}

func (e *fileError) Unwrap() error { return e.err }

// readDocument reads a file of one YAML document, or JSON.
func readDocument(name string) (*document, error) {
	text, err := os.ReadFile(name)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w", err)
	}
	d := &document{name: name, text: text, root: &yamlv3.Node{}}
	in := yamlv3.NewDecoder(bytes.NewReader(text))
	if err := in.Decode(d.root); errors.Is(err, io.EOF) {
		return nil, &fileError{name, 1, errors.New("the file is empty")}
	} else if err != nil {
		return nil, d.inLine(err)
	}
	if more := (&yamlv3.Node{}); in.Decode(more) == nil {
		return nil, &fileError{name, more.Line, errors.New("a second document: want one")}
	}
	return d, nil
}

// yamlLine matches the line in errors of the YAML decoders.
var yamlLine = regexp.MustCompile(`\bline (\d+): `)

// inLine moves the line in a decoder's error to the front.
func (d *document) inLine(err error) error {
	text, line := err.Error(), 0
	if m := yamlLine.FindStringSubmatchIndex(text); m != nil {
		line, _ = strconv.Atoi(text[m[2]:m[3]])
		text = text[m[1]:]
	}
	return &fileError{d.name, line, errors.New(strings.TrimPrefix(text, "yaml: "))}
}

// decode decodes the configuration strictly: an unknown or repeated field is an error, and is not
// ignored.
func (d *document) decode() (*config, error) {
	text, err := yaml.YAMLToJSONStrict(d.text)
	if err != nil {
		return nil, d.inLine(err)
	}
	c := &config{}
	strict, err := json.UnmarshalStrict(text, c)
	if err != nil {
		strict = append(strict, err)
	}
	for i := range strict {
		strict[i] = d.undecoded(strict[i])
	}
	return c, errors.Join(strict...)
}

// The decoder's texts about fields: unknown field "iptables.bit", and of type metav1.Duration in Go
// struct field KubeProxyConfiguration.iptables.syncPeriod.
var (
	unknownField = regexp.MustCompile(`unknown field "([^"]+)"`)
	goField      = regexp.MustCompile(`Go struct field (?:\w+\.)?([\w.]+) of type`)
)

// undecoded adds to an error where the decoder stopped.
func (d *document) undecoded(err error) error {
	text := strings.TrimPrefix(err.Error(), "json: ")
	for _, m := range unknownField.FindAllStringSubmatch(text, 1) {
		return &fileError{d.name, d.line(m[1]), &valueError{m[1], errors.New("no such field")}}
	}
	for _, m := range goField.FindAllStringSubmatch(text, 1) {
		return &fileError{d.name, d.line(m[1]), errors.New(text)}
	}
	return d.inLine(errors.New(text))
}

// line returns the line of a field, or of the nearest one around it, or 0.
func (d *document) line(path string) int {
	if len(d.root.Content) == 0 {
		return 0
	}
	line, node := 0, d.root.Content[0]
	for name := range strings.SplitSeq(path, ".") {
		name, _, _ = strings.Cut(name, "[")
		var value *yamlv3.Node
		for i := 0; i+1 < len(node.Content) && node.Kind == yamlv3.MappingNode; i += 2 {
			if node.Content[i].Value == name {
				line, value = node.Content[i].Line, node.Content[i+1]
			}
		}
		if value == nil {
			break
		}
		node = value
	}
	return line
}
