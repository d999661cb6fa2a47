package keepalived

import (
	"errors"
	"fmt"
	"strings"
)

// statement is a line of a configuration: a keyword, its arguments, and its block.
type statement struct {
	position
	words []string // never empty
	// option is what messages name instead of the keyword, such as an option of ipvsadm.
	option string
	block  bool
	body   []*statement
}

func (s *statement) keyword() string { return s.words[0] }
func (s *statement) args() []string  { return s.words[1:] }

// maxDepth bounds blocks within blocks; keepalived's have four.
const maxDepth = 20

// parse reads the lines of a configuration. A brace may be on the line of its keyword or on the
// next line. at is the position of an error.
func parse(lines []line) (all []*statement, at position, err error) {
	open := []*statement{{}} // the blocks that have not ended; the first one is the file
	var now, last *statement // the statement of this line, and the statement that may get a block
	for _, l := range lines {
		words, err := split(l.text)
		if err != nil {
			return nil, l.position, err
		}
		now = nil
		for _, w := range words {
			inner := open[len(open)-1]
			switch {
			case w.brace && w.text == "{" && (last == nil || last.block):
				return nil, l.position, errors.New("a block without a keyword")
			case w.brace && w.text == "{" && len(open) > maxDepth:
				return nil, l.position, errors.New("too many blocks within blocks")
			case w.brace && w.text == "{":
				last.block = true
				open, last, now = append(open, last), nil, nil
			case w.brace && len(open) == 1:
				return nil, l.position, errors.New("a } too many")
			case w.brace:
				open, last, now = open[:len(open)-1], nil, nil
			case now == nil:
				now = &statement{position: l.position, words: []string{w.text}}
				last, inner.body = now, append(inner.body, now)
			default:
				now.words = append(now.words, w.text)
			}
		}
	}

	if len(open) > 1 {
		inner := open[len(open)-1]
		return nil, inner.position, fmt.Errorf("the block of %s has no end", inner.keyword())
	}

	return open[0].body, position{}, nil
}

// word is a word of a line, or a brace.
type word struct {
	text  string
	brace bool
}

// uncomment returns a line up to its comment. As in keepalived (decomment in lib/parser.c), "#" and
// "!" begin a comment also within a word, unless they are quoted. Behind a backslash, and if a
// backslash ends the line, versions of keepalived differ.
func uncomment(line string) (string, error) {
	quoted := false
	for i := 0; i < len(line); i++ {
		switch c := line[i]; {
		case c == '"':
			quoted = !quoted
		case c == '\\':
			if i++; i == len(line) || !quoted && (line[i] == '#' || line[i] == '!') {
				return "", errors.New("a backslash before #, ! or the end of the line: quote it")
			}
		case !quoted && (c == '#' || c == '!'):
			if strings.HasSuffix(line, `\`) && i > 0 {
				return "", errors.New("a backslash ends the comment: keepalived reads it as a word")
			}
			return uncomment(strings.TrimRight(line[:i], " \t")) // it has no comment
		}
	}

	return line, nil
}

// split splits a line into words up to a comment. Words are separated by spaces, or quoted.
func split(line string) ([]word, error) {
	var out []word
	line, err := uncomment(strings.Trim(line, " \t\r\n"))
	if err != nil {
		return nil, err
	}
	for {
		line = strings.TrimLeft(line, " \t\r\n\v\f")
		if line == "" {
			return out, nil
		}
		switch line[0] {
		case '{', '}':
			out = append(out, word{line[:1], true})
			line = line[1:]
		case '"':
			end := strings.IndexByte(line[1:], '"')
			if end < 0 {
				return nil, errors.New("a quotation mark is missing")
			}
			out = append(out, word{line[1 : end+1], false})
			line = line[end+2:]
		default:
			end := strings.IndexAny(line, " \t\r\n\v\f{}\"")
			if end < 0 {
				end = len(line)
			}
			out = append(out, word{line[:end], false})
			line = line[end:]
		}
	}
}
