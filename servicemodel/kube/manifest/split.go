package manifest

import "bytes"

type document struct {
	text []byte
	line int // in the file, from 1
}

// byteOrderMark is a mark that some editors put before UTF-8 text.
const byteOrderMark = "\ufeff"

// split cuts a file into its documents at the marker lines of YAML, "---" and "...". Neither JSON
// nor the inside of a YAML value can contain such a line. Empty documents are left out.
func split(data []byte) []document {
	data = bytes.TrimPrefix(data, []byte(byteOrderMark))
	var docs []document
	start, first := 0, 1 // of the current document
	add := func(end int) {
		if text := data[start:end]; !blank(text) {
			docs = append(docs, document{text, first})
		}
	}

	pos, number := 0, 0
	for line := range bytes.Lines(data) {
		number++
		if marker(line) {
			add(pos)
			start, first = pos+3, number // the rest of the line belongs to the next document
		}

		pos += len(line)
	}

	add(pos)
	return docs
}

// marker reports whether a line ends a document.
func marker(line []byte) bool {
	if !bytes.HasPrefix(line, []byte("---")) && !bytes.HasPrefix(line, []byte("...")) {
		return false
	}
	return len(line) == 3 || bytes.IndexByte([]byte(" \t\r\n"), line[3]) >= 0
}

// blank reports whether text contains only space, comments and YAML directives.
func blank(text []byte) bool {
	for line := range bytes.Lines(text) {
		line = bytes.TrimSpace(line)
		if len(line) > 0 && line[0] != '#' && line[0] != '%' {
			return false
		}
	}

	return true
}
