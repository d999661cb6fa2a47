package keepalived

import (
	"errors"
	"fmt"
	"strings"
)

// statement is a line of a configuration: a keyword, its arguments, and its block.
type statement struct {
	line  int
	words []string // never empty
	block bool
	body  []*statement
}

func (s *statement) keyword() string { return s.words[0] }
func (s *statement) args() []string  { return s.words[1:] }

// maxDepth bounds blocks within blocks; keepalived's have four.
const maxDepth = 20

// lineError is a fault in a line.
type lineError struct {
	line int
	err  error
}

func (e *lineError) Error() string { return fmt.Sprintf("%d: %v", e.line, e.err) }

// parse reads a configuration. A brace may stand on the line of its keyword or on the next one.
func parse(text string) ([]*statement, error) {
	p := &parser{}
	for line := range strings.Lines(text) {
		p.line++
		words, err := split(line)
		if err == nil {
			err = p.take(words)
		}
		if err != nil {
			return nil, &lineError{p.line, err}
		}
	}
	if len(p.open) > 0 {
		last := p.open[len(p.open)-1]
		return nil, &lineError{last.line, fmt.Errorf("the block of %s has no end", last.keyword())}
	}
	return p.top, nil
}

// parser has the statements so far.
type parser struct {
	line int
	top  []*statement
	open []*statement // blocks that have not ended
	last *statement   // the statement that may get a block; nil if there is none
}

// take adds the words of one line.
func (p *parser) take(words []word) error {
	var now *statement
	for _, w := range words {
		switch {
		case w.brace && w.text == "{":
			if p.last == nil || p.last.block {
				return errors.New("a block without a keyword")
			}
			if len(p.open) == maxDepth {
				return errors.New("too many blocks within blocks")
			}
			p.last.block = true
			p.open, p.last, now = append(p.open, p.last), nil, nil
		case w.brace:
			if len(p.open) == 0 {
				return errors.New("a } too many")
			}
			p.open, p.last, now = p.open[:len(p.open)-1], nil, nil
		case now == nil:
			now = &statement{line: p.line, words: []string{w.text}}
			p.last = now
			if len(p.open) == 0 {
				p.top = append(p.top, now)
			} else {
				block := p.open[len(p.open)-1]
				block.body = append(block.body, now)
			}
		default:
			now.words = append(now.words, w.text)
		}
	}
	return nil
}

// word is a word of a line, or a brace.
type word struct {
	text  string
	brace bool
}

// split splits a line into words up to a comment. Words are separated by spaces, or quoted.
func split(line string) ([]word, error) {
	var out []word
	for {
		line = strings.TrimLeft(line, " \t\r\n\v\f")
		if line == "" || line[0] == '#' || line[0] == '!' {
			return out, nil
		}
		switch line[0] {
		case '{', '}':
			out = append(out, word{line[:1], true})
			line = line[1:]
		case '"', '\'':
			end := strings.IndexByte(line[1:], line[0])
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
