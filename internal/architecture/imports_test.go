package architecture

import (
	"maps"
	"slices"
	"strings"
	"testing"
)

// row says what a package may import of ours and of others. Its tests may import
// what they like, except that parties never meet (see TestPartiesNeverImportEachOther).
type row struct {
	ours    string // paths below the module, separated by spaces; "." is the root, "*" anything
	modules string // other modules, separated by spaces; the standard library is always allowed
	why     string
}

const (
	sys      = "golang.org/x/sys"
	connect  = "connectrpc.com/connect"
	fsnotify = "github.com/fsnotify/fsnotify"
)

// table is architecture.md's "who may import whom". A package that is not in it
// fails: put it in with the reason.
var table = map[string]row{
	".": {why: "the vocabulary; everything else imports it, so it costs nothing to import"},

	"api/holdfast/v1":                   {modules: "google.golang.org/protobuf", why: "generated: wire types know nothing of ours"},
	"api/holdfast/v1/holdfastv1connect": {ours: "api/holdfast/v1", modules: connect, why: "generated"},

	"rpc": {ours: ". api/holdfast/v1 api/holdfast/v1/holdfastv1connect internal/stack",
		modules: connect + " connectrpc.com/grpchealth connectrpc.com/grpcreflect google.golang.org/genproto/googleapis/rpc google.golang.org/protobuf",
		why:     "the one place where wire types meet domain types; it serves root interfaces, never a party"},
	"rpc/hop":   {ours: ".", why: "plain HTTP and JSON between parties, whoever they are"},
	"rpc/guest": {ours: ". rpc/hop", why: "H11 over root interfaces: the guest binary contains it, so it stays tiny"},
	"rpc/host":  {ours: ". rpc/hop rpc/guest", why: "H3, and H11 passed on: root interfaces, never package hostagent"},
	"rpc/fleet": {ours: ". delivery rpc/hop", why: "H2 and H7: root interfaces and authenticated deliveries, never package fleet"},

	"client":            {ours: ". rpc", why: "the SDK speaks domain types; the wire is rpc's"},
	"client/clienttest": {ours: ". rpc", why: "a server to test against, over the real wire"},

	"mcp": {ours: ". client", modules: "github.com/modelcontextprotocol/go-sdk", why: "a face: over the client alone, like any caller"},

	"delivery":        {why: "the reliability layer: importable alone"},
	"delivery/inbox":  {why: "takes whatever *sql.Tx satisfies, so that it needs no store"},
	"delivery/outbox": {ours: "delivery", why: "takes whatever *sql.Tx satisfies; sends through delivery"},
	"operation":       {why: "the reliability layer: knows resources by kind and id alone"},
	"reconcile":       {why: "the reliability layer: knows no resource and no database"},
	"transport":       {why: "usable under anyone's HTTP client, and in the guest"},

	"store":                  {why: "database/sql with promises; knows no noun"},
	"store/internal/migrate": {ours: "store", modules: "github.com/pressly/goose", why: "migrations, the same for every dialect"},
	"store/sqlite":           {ours: "store store/internal/migrate", modules: "modernc.org/sqlite github.com/pressly/goose " + sys, why: "one dialect"},
	"store/postgres":         {ours: "store store/internal/migrate", modules: "github.com/jackc/pgx github.com/pressly/goose " + sys, why: "the other dialect"},
	"store/lineage":          {ours: "store", why: "whose database it is; knows no noun"},
	"store/storetest":        {ours: "store", why: "the suite that every dialect passes"},

	"environment":  {ours: ".", modules: "gopkg.in/yaml.v3", why: "recipes from YAML, for programs that send them: the root takes no YAML"},
	"audit":        {ours: ". reconcile", why: "a party's registry in the root's words: the reliability layer knows none of them"},
	"hook":         {ours: ".", modules: "gopkg.in/yaml.v3", why: "rule files and what they make of a payload: pure, and nothing of a party"},
	"orchestrator": {ours: ". audit blob store store/lineage delivery delivery/inbox delivery/outbox hook operation reconcile", why: "a party: its own nouns over the reliability layer; it names and removes the blobs that hosts put"},
	"fleet":        {ours: ". audit store store/lineage delivery delivery/inbox delivery/outbox reconcile", why: "a party: its own nouns over the reliability layer"},
	"hostagent": {ours: ". audit blob delivery internal/stack layer reconcile runtime spool", modules: sys,
		why: "a party: it keeps records in files, so it needs no store; images are an interface to it"},
	"guestagent": {ours: ". delivery internal/stack spool", modules: fsnotify + " " + sys,
		why: "a party, and PID 1 of every instance: its dependencies run in other people's images"},
	"spool": {ours: ".", modules: fsnotify + " " + sys, why: "written by the guest, read by its host: both contain it"},

	"blob":          {modules: "github.com/minio/minio-go", why: "objects in a directory or a bucket; nothing of ours"},
	"blob/blobtest": {ours: "blob", why: "the suite that every store of objects passes"},
	"layer":         {modules: sys, why: "unpacks what strangers packed; nothing of ours"},

	"runtime":                   {ours: ".", why: "the seam to what runs instances"},
	"runtime/runc":              {ours: ". layer runtime", modules: "github.com/google/nftables github.com/opencontainers/runtime-spec github.com/vishvananda/netlink github.com/vishvananda/netns golang.org/x/sync " + sys, why: "a driver"},
	"runtime/simulated":         {ours: ". layer runtime", why: "a driver; its guests are handed to it, so that it does not know guestagent"},
	"runtime/runtimetest":       {ours: ". layer runtime runtime/runtimetest/probe", modules: sys, why: "the suite that every driver passes"},
	"runtime/runtimetest/probe": {modules: sys, why: "runs inside the instances that the suite boots"},
	"image":                     {ours: ". blob layer", modules: "github.com/google/go-containerregistry github.com/klauspost/compress golang.org/x/sync " + sys, why: "base images; knows no driver"},

	"simulation":            {ours: "*", modules: "*", why: "the whole system under virtual time, wired as internal/server does"},
	"simulation/step":       {ours: ". blob runtime store", why: "decorates what parties are given: interfaces, never a party"},
	"simulation/history":    {ours: ". rpc transport", modules: "github.com/anishathalye/porcupine", why: "clients of a real server, from outside; its tests start the server"},
	"simulation/crashpoint": {ours: ". client simulation simulation/step store store/lineage", why: "runs of the simulated world in which parties die at every step"},

	"internal/server":         {ours: "*", modules: "*", why: "wires implementations together, for cmd and for tests"},
	"internal/injection":      {ours: "*", modules: "*", why: "starts throwaway systems for holdfast audit --inject"},
	"internal/testenv":        {ours: "*", modules: "*", why: "runs the real programs for tests"},
	"internal/cluster":        {ours: "*", modules: "*", why: "runs the real programs as a whole deployment, for a person and for tests"},
	"internal/cluster/run":    {ours: "*", modules: "*", why: "a program that shows that to a person"},
	"internal/demo":           {ours: "*", modules: "*", why: "a program that shows the main job to a person"},
	"internal/acceptance":     {ours: "*", modules: "*", why: "tests only: the promises on real programs and containers"},
	"internal/bench":          {ours: "*", modules: "*", why: "a program that measures the others"},
	"internal/architecture":   {why: "tests only"},
	"internal/stack":          {why: "whoever starts a goroutine for each call may import it, so it knows nothing"},
	"internal/kill":           {why: "tests only: rung 5 of the proof, real programs killed"},
	"internal/prove":          {why: "what the rungs of the proof share; they import it, so it knows none of them"},
	"simulation/explorer":     {why: "walks states, whatever they are of; the models are tests beside the decisions they drive"},
	"simulation/interleaving": {why: "tests only: the races, in every order of their durable steps"},
	"internal/prove/run":      {ours: "internal/prove", why: "a program that runs the rungs as tests, and reads what they report"},
	"internal/mutant":         {why: "edits of the product's source as text: it knows none of it, and nothing of the product knows it"},
	"internal/mutant/run":     {ours: "internal/mutant", why: "a program that seeds them"},
	"internal/testsummary":    {ours: "internal/prove", why: "reads `go test -json`, and the rungs' figures"},
	"cmd/holdfast":            {ours: "*", modules: "*", why: "a program names implementations"},
	"cmd/holdfast-guest":      {ours: ". guestagent spool rpc/guest", modules: sys, why: "a program, and the one that must stay tiny"},
}

func TestImports_EachPackageImportsWhatTheTableAllows(t *testing.T) {
	loaded := load(t)
	seen := map[string]bool{}
	for _, p := range loaded.ours {
		seen[p.path] = true
		allowed, ok := table[p.path]
		if !ok {
			t.Errorf("%s is not in the import table: add it, with the reason", p.path)
			continue
		}
		if allowed.why == "" {
			t.Errorf("%s is in the import table without a reason", p.path)
		}
		for _, path := range p.Imports {
			if why := allowed.refuses(loaded.all[path]); why != "" {
				t.Errorf("%s imports %s: %s\n\tthe table's reason: %s", p.path, path, why, allowed.why)
			}
		}
		for _, path := range strings.Fields(allowed.ours) {
			if path != "*" && !slices.ContainsFunc(p.Imports, func(i string) bool { return below(i) == path }) {
				t.Errorf("%s may import %s and does not: take it out of the table", p.path, path)
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(table)) {
		if !seen[path] {
			t.Errorf("%s is in the import table and does not exist", path)
		}
	}
}

// refuses says why an import is not allowed; "" when it is.
func (r row) refuses(imported listed) string {
	switch {
	case imported.Standard || imported.ImportPath == "C":
		return ""
	case imported.Module == nil:
		return "it belongs to no module"
	case imported.Module.Path == module:
		if r.ours == "*" || slices.Contains(strings.Fields(r.ours), below(imported.ImportPath)) {
			return ""
		}
		return "of ours it may import " + orNothing(r.ours)
	case r.modules == "*":
		return ""
	}
	for _, m := range strings.Fields(r.modules) {
		if imported.Module.Path == m || strings.HasPrefix(imported.Module.Path, m+"/v") || strings.HasPrefix(imported.ImportPath, m+"/") {
			return ""
		}
	}
	return "of other modules it may import " + orNothing(r.modules)
}

func orNothing(list string) string {
	if list == "" {
		return "nothing"
	}
	return list
}

// implementations are named by programs, by what wires them, and by tests alone.
var implementations = []string{"store/sqlite", "store/postgres", "runtime/runc", "runtime/simulated"}

func TestImports_OnlyProgramsNameImplementations(t *testing.T) {
	for _, p := range load(t).ours {
		top, _, _ := strings.Cut(p.path, "/")
		if top == "cmd" || top == "internal" || top == "simulation" {
			continue
		}
		for _, path := range p.Imports {
			if slices.Contains(implementations, below(path)) {
				t.Errorf("%s names the implementation %s: take the interface, and let cmd hand it over", p.path, below(path))
			}
		}
	}
}

// contract: B1. The four parties are deployed apart: each knows the others as
// root interfaces, in tests too.
func TestPartiesNeverImportEachOther(t *testing.T) {
	parties := []string{"orchestrator", "fleet", "hostagent", "guestagent"}
	for _, p := range load(t).ours {
		if !slices.Contains(parties, p.path) {
			continue
		}
		for _, path := range slices.Concat(p.Imports, p.TestImports, p.XTestImports) {
			if other := below(path); other != p.path && slices.Contains(parties, other) {
				t.Errorf("%s imports %s", p.path, other)
			}
		}
	}
}

// standalone packages are importable by anyone, without anything else of ours
// and without a single module.
var standalone = []string{".", "delivery", "delivery/inbox", "delivery/outbox", "operation", "reconcile", "transport", "store"}

func TestTheReliabilityLayerNeedsTheStandardLibraryAlone(t *testing.T) {
	loaded := load(t)
	for _, p := range loaded.ours {
		if !slices.Contains(standalone, p.path) {
			continue
		}
		for _, path := range p.Deps {
			dep := loaded.all[path]
			if dep.Standard || path == "unsafe" || p.path == "delivery/outbox" && below(path) == "delivery" {
				continue
			}
			t.Errorf("%s depends on %s", p.path, path)
		}
	}
}

// guestModules is all that runs as PID 1 in other people's images.
var guestModules = map[string]string{
	sys:      "pidfds, openat2, terminals: what package syscall lacks",
	fsnotify: "WatchDirectory, and following output without polling",
}

func TestTheGuestBinaryStaysTiny(t *testing.T) {
	loaded := load(t)
	guest, ok := loaded.all[module+"/cmd/holdfast-guest"]
	if !ok {
		t.Fatal("there is no cmd/holdfast-guest")
	}
	used := map[string]bool{}
	for _, path := range guest.Deps {
		dep := loaded.all[path]
		if dep.Standard || path == "unsafe" || dep.Module != nil && dep.Module.Path == module {
			continue
		}
		used[dep.Module.Path] = true
		if guestModules[dep.Module.Path] == "" {
			t.Errorf("the guest binary contains %s of %s: every module in it runs as PID 1 in other people's images", path, dep.Module.Path)
		}
	}
	for _, m := range slices.Sorted(maps.Keys(guestModules)) {
		if !used[m] {
			t.Errorf("the guest binary is allowed %s and does not use it: take it off the list", m)
		}
	}
}
