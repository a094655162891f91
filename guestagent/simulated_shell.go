package guestagent

import (
	"fmt"
	"slices"
	"strings"
)

// simulatedShell is sh [-e] -c SCRIPT [$0]: simple commands, each on a line or behind a
// semicolon, of words that may be quoted. It knows $0, exec, exit and 2>&1, so that the
// setup of an environment runs in a simulation; there is nothing else of a shell.
func simulatedShell(s *Simulated, child *simulatedChild, c Command) int {
	at := slices.Index(c.Args, "-c")
	if at < 0 || at+1 == len(c.Args) {
		return complain(c, 2, "the simulation has only sh [-e] -c SCRIPT")
	}
	name := "sh"
	if at+2 < len(c.Args) {
		name = c.Args[at+2]
	}
	code := 0
	for _, words := range simulatedScript(c.Args[at+1], name) {
		select {
		case <-child.killed:
			return code
		default:
		}
		last := words[0] == "exec" || words[0] == "exit"
		if words[0] == "exec" {
			words = words[1:]
		}
		code = simulatedWords(s, child, c, words)
		if last || code != 0 && slices.Contains(c.Args[:at], "-e") {
			return code
		}
	}
	return code
}

// simulatedWords runs one simple command of a script.
func simulatedWords(s *Simulated, child *simulatedChild, c Command, words []string) int {
	if at := slices.Index(words, "2>&1"); at >= 0 {
		words, c.Stderr = slices.Delete(slices.Clone(words), at, at+1), c.Stdout
	}
	if len(words) == 0 {
		return 0
	}
	run, known := programs()[words[0]]
	if !known {
		return complain(c, 127, "command not found: the simulation has no %q", words[0])
	}
	c.Name, c.Args = words[0], words[1:]
	return run(s, child, c)
}

func complain(c Command, code int, format string, args ...any) int {
	if _, err := fmt.Fprintf(c.Stderr, format+"\n", args...); err != nil {
		return 1
	}
	return code
}

// simulatedScript is a script's commands, as the words of each.
func simulatedScript(script, name string) (commands [][]string) {
	var words []string
	var word strings.Builder
	var quote rune
	begun := false // a word, which quotes alone begin too
	endWord := func() {
		if begun {
			words = append(words, word.String())
		}
		word.Reset()
		begun = false
	}
	for _, r := range strings.ReplaceAll(script, "$0", "\x00") + "\n" {
		switch {
		case quote == 0 && (r == '\n' || r == ';'):
			if endWord(); len(words) > 0 {
				commands = append(commands, words)
			}
			words = nil
		case quote == 0 && (r == ' ' || r == '\t'):
			endWord()
		case quote == 0 && (r == '\'' || r == '"'):
			quote, begun = r, true
		case quote != 0 && r == quote:
			quote = 0
		case r == 0 && quote == '\'':
			word.WriteString("$0")
		case r == 0:
			word.WriteString(name)
			begun = true
		default:
			word.WriteRune(r)
			begun = true
		}
	}
	return commands
}
