package step

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

// The scanner finds what the expression says, which it replaces for its speed.
func TestIDsAreFoundAsTheExpressionFindsThem(t *testing.T) {
	expression := regexp.MustCompile(`[a-z]{2,3}-[0-9a-z]{26}`)
	id := "0123456789abcdefghijklmnop"
	pieces := []string{"sb-" + id, "op-" + id, "inst-" + id, "a-" + id, "-", "ab-", id, "Xsb-" + id, "sb-" + id[1:], "sb-sb-" + id, "/", `"`, "é", ""}
	for _, a := range pieces {
		for _, b := range pieces {
			for _, c := range pieces {
				text := a + b + c
				var want []string
				for _, found := range expression.FindAllString(text, -1) {
					if !slices.Contains(want, found) {
						want = append(want, found)
					}
				}
				if got := idsIn(text); !slices.Equal(got, want) {
					t.Fatalf("in %q there are %q, not %q", text, want, got)
				}
				if plain, _ := route(text); plain != expression.ReplaceAllString(text, "*") {
					t.Fatalf("%q without ids is %q", text, plain)
				}
			}
		}
	}
	if ids := idsIn(strings.Join([]string{"aa-" + id, "bb-" + id, "cc-" + id, "dd-" + id}, " ")); len(ids) != maxKeys {
		t.Errorf("%d ids make a key", len(ids))
	}
}
