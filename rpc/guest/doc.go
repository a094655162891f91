// Package guest is H11 over plain HTTP and JSON: what a guest agent serves on
// its instance's own socket, and what a host agent serves for its guests under a
// prefix. Calls are those of package hop. Output, lists and watches are one JSON
// frame a line, of which the last says that it is the last; contents of files are
// framed by length, with an end that says how much it was, so that what was cut
// is never taken for what was complete (trap T44).
package guest
