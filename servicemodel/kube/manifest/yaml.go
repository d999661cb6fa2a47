package manifest

//lint:file-ignore SA1019 only this alias of sigs.k8s.io/yaml gives lines and unexpanded aliases

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"

	yaml "sigs.k8s.io/yaml/goyaml.v3"
)

// parseYAML parses a YAML document, and returns nil if it is empty. It does not write out aliases,
// so its cost depends only on the length of the text.
func parseYAML(d document) (*value, error) {
	if len(d.text) > maxYAML {
		return nil,
			syntaxErrorf(d.line, "larger than %d MiB; split the document, or write it as JSON",
				maxYAML>>20)
	}

	dec := yaml.NewDecoder(bytes.NewReader(d.text))
	var root, more yaml.Node
	if err := dec.Decode(&root); errors.Is(err, io.EOF) {
		return nil, nil
	} else if err != nil {
		return nil, explainYAML(err, d.line)
	}

	if err := dec.Decode(&more); !errors.Is(err, io.EOF) { // the parser stops where a value ends
		return nil,
			syntaxErrorf(d.line,
				"there is more text after the document's value; separate documents with a line of "+
					"---")
	}

	p := &yamlParser{first: d.line, anchored: map[*yaml.Node]*value{}}
	v, err := p.value(&root, 0)
	if err != nil {
		return nil, err
	}
	if v.size > p.written+maxAliased {
		return nil,
			syntaxErrorf(v.line, "aliases make the document more than %d MiB longer than it is",
				maxAliased>>20)
	}

	return v, nil
}

// yamlParser turns YAML nodes into values.
type yamlParser struct {
	first    int // line of the file at which the document begins
	anchored map[*yaml.Node]*value
	written  int // size without aliases
}

func (p *yamlParser) value(n *yaml.Node, depth int) (*value, error) {
	v := &value{line: n.Line + p.first - 1}
	if depth > maxDepth {
		return nil, syntaxErrorf(v.line, "nested more than %d deep", maxDepth)
	}
	if n.Anchor != "" {
		p.anchored[n] = nil // being read
	}
	switch n.Kind {
	case yaml.DocumentNode:
		return p.value(n.Content[0], depth)
	case yaml.AliasNode:
		known, ok := p.anchored[n.Alias]
		if !ok { // an anchor at a field name
			return p.value(n.Alias, depth+1)
		}
		if known == nil {
			return nil, syntaxErrorf(v.line, "the alias *%s stands for something it is part of",
				show(n.Value))
		}

		return known, nil
	case yaml.SequenceNode:
		v.kind = listValue
		for _, c := range n.Content {
			item, err := p.value(c, depth+1)
			if err != nil {
				return nil, err
			}
			v.items = append(v.items, item)
		}
	case yaml.MappingNode:
		v.kind = objectValue
		for i := 0; i+1 < len(n.Content); i += 2 {
			name, line := n.Content[i], n.Content[i].Line+p.first-1
			if name.Kind != yaml.ScalarNode {
				return nil, syntaxErrorf(line, "a field name must be text")
			}
			if name.ShortTag() == "!!merge" {
				return nil, syntaxErrorf(line, "merge keys (<<) are not supported")
			}
			m, err := p.value(n.Content[i+1], depth+1)
			if err != nil {
				return nil, err
			}
			p.written += len(name.Value)
			v.members = append(v.members, member{name.Value, m})
		}
	default:
		if err := scalar(v, n); err != nil {
			return nil, err
		}
	}

	if err := v.finish(); err != nil {
		return nil, err
	}
	p.written += nodeSize + len(v.text)
	if n.Anchor != "" {
		p.anchored[n] = v
	}
	return v, nil
}

// plainInt matches integers that are written alike in YAML and JSON.
var plainInt = regexp.MustCompile(`^-?(0|[1-9][0-9]*)$`)

// scalar parses a single value by the types of YAML 1.2, with the number notations of YAML 1.1.
func scalar(v *value, n *yaml.Node) error {
	v.text = n.Value
	switch tag := n.ShortTag(); tag {
	case "!!str", "!!timestamp":
		v.kind = textValue
	case "!!null":
		v.kind, v.text = nullValue, ""
	case "!!bool":
		v.kind, v.text = boolValue, strings.ToLower(n.Value)
	case "!!int", "!!float":
		v.kind = numberValue
		if plainInt.MatchString(n.Value) {
			return nil
		}
		var number any
		if err := n.Decode(&number); err != nil {
			return syntaxErrorf(v.line, "%s is not a number", show(n.Value))
		}
		switch number.(type) {
		case int, int64, uint64:
			v.text = fmt.Sprint(number)
		}
	default:
		return syntaxErrorf(v.line, "the tag %s is not supported", show(tag))
	}

	return nil
}

var yamlMessage = regexp.MustCompile(`^yaml: (?:line (\d+): )?`)

// explainYAML replaces the line number in an error of the parser with the line number in the file.
func explainYAML(err error, first int) error {
	text, line := err.Error(), first
	if m := yamlMessage.FindStringSubmatch(text); m != nil {
		text = text[len(m[0]):]
		if n, err := strconv.Atoi(m[1]); err == nil {
			line += n - 1
		}
	}

	return syntaxErrorf(line, "not YAML: %s", shorten(text, 160))
}
