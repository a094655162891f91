package testenv

import (
	"bytes"
	"context"
	"crypto/rand"
	"flag"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// dialectVariable names the server that this test process's harnesses use instead of SQLite.
const dialectVariable = "HOLDFAST_TEST_POSTGRES"

// PostgresSchema is for a harness that runs on either dialect: where the tests run on PostgreSQL it is a server's URL
// and a schema there that nobody else uses, which goes when the test ends. Otherwise ok is false: take SQLite.
func PostgresSchema(t testing.TB) (url, schema string, ok bool) {
	t.Helper()
	url = os.Getenv(dialectVariable)
	if url == "" {
		return "", "", false
	}
	schema = "s" + strings.ToLower(rand.Text())
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), postgresStart)
		defer cancel()
		if err := execute(ctx, url, "DROP SCHEMA IF EXISTS "+schema+" CASCADE"); err != nil {
			t.Error(err)
		}
	})
	return url, schema, true
}

// InPostgresSchema is PostgresSchema for a harness that opens a *sql.DB by itself: the schema is there, and the URL
// leads into it.
func InPostgresSchema(t testing.TB) (url string, ok bool) {
	t.Helper()
	url, schema, ok := PostgresSchema(t)
	if !ok {
		return "", false
	}
	if err := execute(t.Context(), url, "CREATE SCHEMA "+schema); err != nil {
		t.Fatal(err)
	}
	return url + "&search_path=" + schema, true
}

// OnPostgres runs each of the package's other tests once more as a subtest, in a process of its own whose harness takes
// PostgreSQL: go test -run 'TestOnPostgres/TestA6_…' runs one. The caller is TestOnPostgres, which is thereby left out.
func OnPostgres(t *testing.T) {
	t.Helper()
	server := StartPostgres(t)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	list, err := exec.CommandContext(t.Context(), exe, "-test.list", "^Test").Output()
	if err != nil {
		t.Fatal(err)
	}
	database := server.local(server.Database(t))
	for _, name := range strings.Fields(string(list)) {
		if name == t.Name() {
			continue
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel() // each is a process with a schema of its own, and mostly waits for the server
			args := []string{"-test.run", "^" + name + "$", "-test.v"}
			if testing.Short() {
				args = append(args, "-test.short")
			}
			if flag.Lookup("rapid.checks") != nil { // long searches are SQLite's, which is faster
				args = append(args, "-rapid.checks=20")
			}
			cmd := exec.CommandContext(t.Context(), exe, args...)
			cmd.Env = append(os.Environ(), dialectVariable+"="+database)
			out, err := cmd.CombinedOutput()
			switch {
			case err != nil:
				t.Fatalf("%v\n%s", err, out)
			case bytes.Contains(out, []byte("\n--- SKIP: "+name+" ")):
				t.Skipf("%s", out)
			}
		})
	}
}
