package main

import (
	"strings"
	"unicode/utf8"

	"golang.org/x/term"
)

const (
	gap      = 2  // between columns
	narrow   = 16 // what the widest column needs: below it a row is shown as lines of its own
	fallback = 80 // the width of a terminal that does not say
)

// section prints a titled table. On a terminal long cells are wrapped to its
// width; in a pipe each row stays one line, whole.
func (a *app) section(s section) error {
	if fd, ok := terminal(a.out); ok {
		width, _, err := term.GetSize(fd)
		if err != nil || width <= 0 {
			width = fallback
		}
		return write(a.out, []byte(s.title+"\n\n"+wrapped(s, width)+"\n"))
	}
	if err := write(a.out, []byte(s.title+"\n")); err != nil {
		return err
	}
	if err := a.table(strings.Join(s.header, " "), s.rows); err != nil {
		return err
	}
	return write(a.out, []byte("\n"))
}

// wrapped lays a table out in so many columns of a terminal: side by side where
// that can be read, else a cell a line.
func wrapped(s section, width int) string {
	rows := make([][]string, 0, 1+len(s.rows))
	rows = append(rows, s.header)
	for _, row := range s.rows {
		safe := make([]string, len(row))
		for i, cell := range row {
			safe[i] = oneLine(cell)
		}
		rows = append(rows, safe)
	}
	widths, shrunk := columnWidths(rows, width)
	var out strings.Builder
	for i, row := range rows {
		switch {
		case widths != nil:
			sideBySide(&out, row, widths)
		case i > 0:
			cellByCell(&out, s.header, row, width)
		}
		if shrunk && i+1 < len(rows) && (i > 0 || widths != nil) {
			out.WriteByte('\n') // between rows of several lines
		}
	}
	return out.String()
}

// columnWidths takes from the widest column until all fit, and returns nil when
// too little would be left of it.
func columnWidths(rows [][]string, width int) (widths []int, shrunk bool) {
	widths = make([]int, len(rows[0]))
	for _, row := range rows {
		for i, cell := range row {
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	total := gap * (len(widths) - 1)
	for _, w := range widths {
		total += w
	}
	for ; total > width; total-- {
		widest := 0
		for i, w := range widths {
			if w > widths[widest] {
				widest = i
			}
		}
		if widths[widest] <= narrow {
			return nil, true
		}
		widths[widest]--
		shrunk = true
	}
	return widths, shrunk
}

func sideBySide(out *strings.Builder, row []string, widths []int) {
	cells := make([][]string, len(row))
	lines := 0
	for i, cell := range row {
		cells[i] = fold(cell, widths[i])
		lines = max(lines, len(cells[i]))
	}
	for n := range lines {
		var line strings.Builder
		for i, cell := range cells {
			text := ""
			if n < len(cell) {
				text = cell[n]
			}
			line.WriteString(text + strings.Repeat(" ", widths[i]-utf8.RuneCountInString(text)+gap))
		}
		out.WriteString(strings.TrimRight(line.String(), " ") + "\n")
	}
}

func cellByCell(out *strings.Builder, header, row []string, width int) {
	label := 0
	for _, h := range header {
		label = max(label, utf8.RuneCountInString(h))
	}
	for i, cell := range row {
		head := header[i]
		for _, line := range fold(cell, max(width-label-gap, narrow)) {
			out.WriteString(head + strings.Repeat(" ", label-utf8.RuneCountInString(head)+gap) + line + "\n")
			head = ""
		}
	}
}

// fold breaks text into lines of at most width runes, between words where it can.
func fold(text string, width int) []string {
	var lines []string
	line := ""
	for word := range strings.FieldsSeq(text) {
		for {
			room := width - utf8.RuneCountInString(line)
			if line != "" {
				room--
			}
			if utf8.RuneCountInString(word) <= room {
				if line != "" {
					line += " "
				}
				line += word
				break
			}
			if line != "" {
				lines, line = append(lines, line), ""
				continue
			}
			runes := []rune(word)
			lines, word = append(lines, string(runes[:width])), string(runes[width:])
		}
	}
	return append(lines, line)
}
