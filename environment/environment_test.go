package environment

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/holdfast-dev/holdfast"
)

const whole = `# everything there is
name: tools
base: debian:bookworm
setup: |
  apt-get update
  apt-get install -y git
files:
  - path: /etc/tools.conf
    content: "a = 1\n"
    mode: 0640
  - {path: /usr/local/bin/hello, content: "#!/bin/sh\necho hello\n", mode: "0755"}
env: {VERSION: 1.10, DEBUG: true, EMPTY: ""}
workdir: /work
user: 1000
resources: {cpu: 1.5, memory: 512MiB, pids: 256}
ports: [8080, 9090]
egress: none
hooks:
  on_suspend: sync
  on_resume: echo back
  on_delete: echo bye
repository: {url: "https://example.com/tools.git", ref: main}
restart: fresh
build: {timeout: 45m}
`

// contract: E1
func TestE1_ARecipeIsReadWhole(t *testing.T) {
	got, err := Parse([]byte(whole))
	if err != nil {
		t.Fatal(err)
	}
	want := holdfast.CreateEnvironment{Name: "tools", Recipe: holdfast.Recipe{
		Base: "debian:bookworm", Setup: "apt-get update\napt-get install -y git\n",
		Files: []holdfast.RecipeFile{{Path: "/etc/tools.conf", Content: "a = 1\n", Mode: 0o640},
			{Path: "/usr/local/bin/hello", Content: "#!/bin/sh\necho hello\n", Mode: 0o755}},
		Env: map[string]string{"VERSION": "1.10", "DEBUG": "true", "EMPTY": ""}, Workdir: "/work", User: "1000",
		Resources: holdfast.Resources{CPUMillis: 1500, MemoryBytes: 512 << 20, PIDs: 256}, Ports: []int{8080, 9090},
		Egress: holdfast.EgressNone, Hooks: holdfast.Hooks{OnSuspend: "sync", OnResume: "echo back", OnDelete: "echo bye"},
		Repository: &holdfast.Repository{URL: "https://example.com/tools.git", Ref: "main"}, Restart: holdfast.RestartFresh, Timeout: 45 * time.Minute,
	}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestUnitsAreReadAsTheyAreWritten(t *testing.T) {
	for text, want := range map[string]holdfast.Resources{
		"cpu: 2":          {CPUMillis: 2000},
		"cpu: 250m":       {CPUMillis: 250},
		"memory: 1.5GiB":  {MemoryBytes: 3 << 29},
		"memory: 256Mi":   {MemoryBytes: 256 << 20},
		"memory: 100MB":   {MemoryBytes: 100_000_000},
		"memory: 1000000": {MemoryBytes: 1_000_000}, // too little, which is the root's to say
	} {
		var got holdfast.CreateEnvironment
		root, err := document([]byte("name: a\nbase: base\nresources: {" + text + "}\n"))
		if err == nil {
			err = (reader{map[string]int{}}).environment(root, &got)
		}
		if err != nil || got.Recipe.Resources != want {
			t.Errorf("%s: got %+v, %v", text, got.Recipe.Resources, err)
		}
	}
}

// The corpus of what people get wrong: each is refused, at its line.
func TestWhatIsWrongIsRefusedAndNamesItsLine(t *testing.T) {
	const head = "name: tools\nbase: base\n"
	for name, test := range map[string]struct{ text, says string }{
		"empty":                 {"", "line 1: it is empty"},
		"a list":                {"- a\n", "line 1: an environment is a mapping"},
		"text":                  {"hello\n", "line 1: an environment is a mapping"},
		"two documents":         {head + "---\nname: b\n", "another document begins here"},
		"bad indentation":       {"name: a\n base: b\n", "line 2"},
		"a tab":                 {"name: a\n\tbase: b\n", "line 2"},
		"no name":               {"base: base\n", "line 1: name"},
		"no base":               {"name: a\n", "line 1: base is missing"},
		"a reserved name":       {"base: base\nname: debian\n", "line 2: name \"debian\" exists without a recipe"},
		"a bad name":            {"base: base\nname: No Way\n", "line 2: name \"No Way\" is no environment's name"},
		"a base that is a name": {"name: a\nbase: b\n", "line 2: base \"b\" is no base"},
		"an unknown key":        {head + "setpu: x\n", "line 3: \"setpu\" is nothing that an environment has: there are name, base, setup"},
		"an unknown inner key":  {head + "hooks:\n  on_boot: x\n", "line 4: \"on_boot\" is nothing that hooks has"},
		"an unknown file key":   {head + "files:\n- path: /a\n  owner: me\n", "line 5: \"owner\" is nothing that files[0] has"},
		"twice":                 {head + "setup: a\nsetup: b\n", "line 4: setup is there twice, first in line 3"},
		"a list for text":       {head + "setup: [a]\n", "line 3: setup must be text, not a list"},
		"a number for text":     {head + "workdir: 7\n", "line 3: workdir must be text, not 7"},
		"nothing for text":      {head + "setup:\n", "line 3: setup must be text, not nothing"},
		"text for a mapping":    {head + "hooks: x\n", "line 3: hooks must be a mapping of on_suspend, on_resume, on_delete, not \"x\""},
		"an alias":              {head + "env: &e {A: b}\nhooks: *e\n", "line 4: hooks is an alias"},
		"a relative workdir":    {head + "workdir: work\n", "line 3: workdir \"work\" is relative"},
		"a relative file":       {head + "files:\n- path: a\n  content: b\n", "line 4: files[0].path \"a\" is relative"},
		"a file twice":          {head + "files:\n- path: /a\n- path: /a\n", "line 5: files[1].path \"/a\" is written twice"},
		"a decimal mode":        {head + "files:\n- path: /a\n  mode: 755\n", "line 5: files[0].mode must be permission bits in octal"},
		"a bad mode":            {head + "files:\n- path: /a\n  mode: 0999\n", "line 5: files[0].mode must be permission bits"},
		"a bad variable":        {head + "env:\n  1A: x\n", "line 4: env has a variable \"1A\""},
		"a nested variable":     {head + "env:\n  A: [x]\n", "line 4: env.A must be text, not a list"},
		"no processors":         {head + "resources: {cpu: none}\n", "line 3: resources.cpu must be a number of processors"},
		"negative memory":       {head + "resources:\n  memory: -1\n", "line 4: resources.memory must be a size"},
		"too little memory":     {head + "resources:\n  memory: 1MiB\n", "line 4: resources.memory_bytes is 1048576"},
		"a disk":                {head + "resources: {disk: 1GiB}\n", "line 3: resources.disk cannot be limited"},
		"few pids":              {head + "resources: {pids: 1.5}\n", "line 3: resources.pids must be a whole number"},
		"a bad port":            {head + "ports: [80, 70000]\n", "line 3: ports has 70000"},
		"a port in words":       {head + "ports: [http]\n", "line 3: ports[0] must be a whole number, not \"http\""},
		"an allow list":         {head + "egress:\n  allow:\n  - example.com:443\n", "line 5: egress.allow cannot name hosts"},
		"a bad egress":          {head + "egress: some\n", "line 3: egress is \"SOME\""},
		"no timeout":            {head + "build: {timeout: 30}\n", "line 3: build.timeout must be a time such as 30m"},
		"a long timeout":        {head + "build: {timeout: 100h}\n", "line 3: build.timeout is 100h0m0s"},
		"a bad user":            {head + "user: -x\n", "line 3: user \"-x\" is no user"},
		"a file as repository":  {head + "repository: {url: \"file:///etc\"}\n", "line 3: repository.url"},
		"an option as ref":      {head + "repository: {url: \"https://a/b\", ref: --upload-pack=x}\n", "line 3: repository.ref"},
		"a bad restart":         {head + "restart: always\n", "line 3: restart is \"ALWAYS\""},
		"a long setup":          {head + "setup: " + strings.Repeat("x", holdfast.MaxScript+1) + "\n", "line 3: setup has 65537 bytes"},
		"a long file":           {strings.Repeat("#\n", MaxBytes), "at most 2097152 are allowed"},
		"a NUL":                 {head + "setup: \"a\\0b\"\n", "line 3: setup contains a NUL"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := Parse([]byte(test.text))
			if err == nil || holdfast.CodeOf(err) != holdfast.InvalidArgument || !strings.Contains(err.Error(), test.says) {
				t.Errorf("got %v, want %q", err, test.says)
			}
		})
	}
}

// Expansion of aliases is how a few lines become gigabytes.
func TestABombOfAliasesIsRefusedAtOnce(t *testing.T) {
	bomb := "name: a\nbase: base\nenv: &a {X: x}\n"
	for c := 'b'; c < 'z'; c++ {
		bomb += "k" + string(c) + ": [*a, *a, *a, *a, *a, *a, *a, *a, *a]\n"
	}
	if _, err := Parse([]byte(bomb)); err == nil {
		t.Error("it was taken")
	}
}

func FuzzParseNeverPanics(f *testing.F) {
	f.Add([]byte(whole))
	f.Add([]byte("name: a\nbase: base\nfiles: {/a: b}\n"))
	f.Fuzz(func(t *testing.T, text []byte) {
		if _, err := Parse(text); err != nil && holdfast.CodeOf(err) != holdfast.InvalidArgument {
			t.Error(err)
		}
	})
}

// What the documentation shows is a recipe.
func TestTheDocumentedRecipeIsOne(t *testing.T) {
	page, err := os.ReadFile("../docs/environments.md")
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(page), "```yaml\n")
	text, _, _ := strings.Cut(rest, "```")
	in, err := Parse([]byte(text))
	if err != nil || in.Name != "tools" || in.Recipe.Hooks.OnSuspend != "sync" || in.Recipe.Restart != holdfast.RestartFromCheckpoint || in.Recipe.Files[0].Mode != 0o644 {
		t.Errorf("%+v, %v", in, err)
	}
}
