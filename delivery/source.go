package delivery

import (
	"strconv"
	"strings"
)

// ParseInstanceSource is the inverse of [InstanceSource]; ok is false for any
// other source.
func ParseInstanceSource(source string) (instance string, incarnation int64, ok bool) {
	rest, ok := strings.CutPrefix(source, "instance/")
	if !ok {
		return "", 0, false
	}
	instance, number, ok := strings.Cut(rest, "/")
	if !ok {
		return "", 0, false
	}
	incarnation, err := strconv.ParseInt(number, 10, 64)
	return instance, incarnation, err == nil
}
