package holdfast_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/holdfast-dev/holdfast"
)

func TestT7_EveryWrongFieldOfEventsAndWebhooksIsNamed(t *testing.T) {
	wh, ev := holdfast.IDs{}.New(holdfast.PrefixWebhook), holdfast.EventID(holdfast.IDs{}.New(holdfast.PrefixEvent))
	hook := holdfast.CreateHook{Name: "gh", Kind: holdfast.HookGitHub, Rules: "rules: []"}
	with := func(change func(*holdfast.CreateHook)) holdfast.CreateHook {
		in := hook
		change(&in)
		return in
	}
	for name, test := range map[string]struct {
		in    interface{ Validate() error }
		field string
		says  string
	}{
		"stream":                   {holdfast.StreamEvents{After: "12", Kinds: []string{"sandbox.*", "operation.failed"}}, "", ""},
		"cursor":                   {holdfast.StreamEvents{After: "a b"}, "after", "cursor"},
		"a long cursor":            {holdfast.StreamEvents{After: strings.Repeat("1", 1025)}, "after", "cursor"},
		"kind":                     {holdfast.StreamEvents{Kinds: []string{"sandbox.redy"}}, "kinds", "sandbox.ready"},
		"kind, no such type":       {holdfast.StreamEvents{Kinds: []string{"box.*"}}, "kinds", "fits no kind"},
		"kind, star in the middle": {holdfast.StreamEvents{Kinds: []string{"*.ready"}}, "kinds", "fits no kind"},
		"kinds, too many":          {holdfast.StreamEvents{Kinds: slices.Repeat([]string{"sandbox.*"}, 33)}, "kinds", "at most 32"},
		"deliveries":               {holdfast.ListDeliveries{Source: "hook/gh"}, "", ""},
		"deliveries, page":         {holdfast.ListDeliveries{PageSize: -1}, "page_size", "1000"},
		"webhook":                  {holdfast.CreateWebhook{URL: "https://example.com/a?b=c"}, "", ""},
		"webhook, nothing":         {holdfast.CreateWebhook{}, "url", "https://example.com"},
		"webhook, scheme":          {holdfast.CreateWebhook{URL: "file:///etc/passwd"}, "url", "https://example.com"},
		"webhook, no host":         {holdfast.CreateWebhook{URL: "https://:80/"}, "url", "https://example.com"},
		"webhook, password":        {holdfast.CreateWebhook{URL: "https://a:b@example.com"}, "url", "password"},
		"webhook, fragment":        {holdfast.CreateWebhook{URL: "https://example.com/#a"}, "url", "fragment"},
		"webhook, new line":        {holdfast.CreateWebhook{URL: "https://example.com/\n"}, "url", "https://example.com"},
		"webhook, long":            {holdfast.CreateWebhook{URL: "https://example.com/" + strings.Repeat("a", 2048)}, "url", "2048"},
		"webhook, kinds":           {holdfast.CreateWebhook{URL: "https://example.com", Kinds: []string{""}}, "kinds", "fits no kind"},
		"webhooks' page token":     {holdfast.ListWebhooks{PageToken: "x"}, "page_token", "none"},
		"dead letters of nothing":  {holdfast.ListDeadLetters{Webhook: "x"}, "webhook", "wh-"},
		"replay":                   {holdfast.ReplayWebhook{ID: holdfast.WebhookID(wh), Events: []holdfast.EventID{ev}}, "", ""},
		"replay of nothing":        {holdfast.ReplayWebhook{ID: "x"}, "id", "wh-"},
		"replay of both":           {holdfast.ReplayWebhook{ID: holdfast.WebhookID(wh), After: "1", Events: []holdfast.EventID{ev}}, "after", "beside"},
		"replay of no event":       {holdfast.ReplayWebhook{ID: holdfast.WebhookID(wh), Events: []holdfast.EventID{"x"}}, "events", "ev-"},
		"replay of too many":       {holdfast.ReplayWebhook{ID: holdfast.WebhookID(wh), Events: slices.Repeat([]holdfast.EventID{ev}, 1001)}, "events", "1000"},
		"hook":                     {hook, "", ""},
		"hook, no name":            {with(func(h *holdfast.CreateHook) { h.Name = "" }), "name", "1 to 63"},
		"hook, name":               {with(func(h *holdfast.CreateHook) { h.Name = "a/b" }), "name", "a-z"},
		"hook, hyphen":             {with(func(h *holdfast.CreateHook) { h.Name = "-a" }), "name", "between"},
		"hook, kind":               {with(func(h *holdfast.CreateHook) { h.Kind = "X" }), "kind", "GITHUB, STANDARD"},
		"hook, project":            {with(func(h *holdfast.CreateHook) { h.Project = "A" }), "project", "lower-case"},
		"hook, no rules":           {with(func(h *holdfast.CreateHook) { h.Rules = "" }), "rules", "empty"},
		"hook, long rules":         {with(func(h *holdfast.CreateHook) { h.Rules = strings.Repeat("a", 64<<10+1) }), "rules", "65536"},
		"hook, secret":             {with(func(h *holdfast.CreateHook) { h.Secret = strings.Repeat("a", 513) }), "secret", "512"},
		"hooks, page":              {holdfast.ListHooks{PageSize: 1001}, "page_size", "1000"},
		"actions":                  {holdfast.ListHookActions{Hook: "gh", States: []holdfast.HookActionState{holdfast.HookActionFailed}}, "", ""},
		"actions, hook":            {holdfast.ListHookActions{Hook: "A"}, "hook", "a-z"},
		"actions, state":           {holdfast.ListHookActions{States: []holdfast.HookActionState{"X"}}, "states", "no state"},
		"actions, page token":      {holdfast.ListHookActions{PageToken: "x"}, "page_token", "none"},
	} {
		t.Run(name, func(t *testing.T) {
			err := test.in.Validate()
			if test.field == "" {
				if err != nil {
					t.Error(err)
				}
				return
			}
			e := holdfast.AsError(err)
			if e == nil || e.Code != holdfast.InvalidArgument || e.Details["field"] != test.field || !strings.Contains(e.Message, test.says) {
				t.Errorf("got %v, want %s with %q", err, test.field, test.says)
			}
		})
	}
}

func TestAFilterOfKindsNamesWhatItSays(t *testing.T) {
	for _, c := range []struct {
		filter []string
		kind   holdfast.EventKind
		want   bool
	}{
		{nil, "sandbox.ready", true}, {[]string{"sandbox.ready"}, "sandbox.ready", true}, {[]string{"sandbox.ready"}, "sandbox.readyish", false},
		{[]string{"sandbox.*"}, "sandbox.ready", true}, {[]string{"sandbox.*"}, "session.ready", false}, {[]string{"a", "*"}, "sandbox.ready", true},
	} {
		if got := holdfast.MatchKinds(c.filter, c.kind); got != c.want {
			t.Errorf("%q names %s: %t", c.filter, c.kind, got)
		}
	}
}
