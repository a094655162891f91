package holdfast

import (
	"context"
	"time"
)

// Environment is a versioned recipe (contract: E1). Each create with another recipe
// under its name is another version.
type Environment struct {
	ID        EnvironmentID
	Project   ProjectID
	Name      string // unique in its project
	Version   int64  // of the recipe, from 1 on
	Recipe    Recipe
	Build     BuildID // the newest READY one; "": none yet
	CreatedAt time.Time
	UpdatedAt time.Time
	DeletedAt time.Time // zero unless deleted: nothing new is made from it
}

// Recipe is what an environment is made of, as its YAML says (package environment
// reads that). Zero fields are the defaults of a sandbox.
type Recipe struct {
	Base       string            `json:"base"`            // "base", "debian:SUITE", "oci:REFERENCE", "tar:PATH", "dir:PATH"
	Setup      string            `json:"setup,omitempty"` // a shell script; its exit code decides
	Files      []RecipeFile      `json:"files,omitempty"` // written before setup runs
	Env        map[string]string `json:"env,omitempty"`   // of setup, hooks and every process
	Workdir    string            `json:"workdir,omitempty"`
	User       string            `json:"user,omitempty"`
	Resources  Resources         `json:"resources"`
	Ports      []int             `json:"ports,omitempty"`
	Egress     Egress            `json:"egress,omitempty"`
	Hooks      Hooks             `json:"hooks"`
	Repository *Repository       `json:"repository,omitempty"`
	Restart    Restart           `json:"restart,omitempty"`
	Timeout    time.Duration     `json:"timeout,omitempty"` // of a build; default BuildTimeout
}

// RecipeFile is a file that a build writes.
type RecipeFile struct {
	Path    string `json:"path"`
	Content string `json:"content"`
	Mode    uint32 `json:"mode,omitempty"` // permission bits; 0: 0644
}

// Hooks are shell scripts that run in the guest, each within HookTimeout.
type Hooks struct {
	OnSuspend string `json:"on_suspend,omitempty"`
	OnResume  string `json:"on_resume,omitempty"`
	OnDelete  string `json:"on_delete,omitempty"`
}

// Repository is a git repository that a session's workspace is made from.
type Repository struct {
	URL string `json:"url"`
	Ref string `json:"ref,omitempty"` // a branch, tag or commit; "": the default branch
}

// Times of builds and hooks.
const (
	BuildTimeout    = 30 * time.Minute // in all
	MaxBuildTimeout = 6 * time.Hour
	BuildSilence    = 2 * time.Minute // without news, before a sweep asks
	HookTimeout     = time.Minute
)

// BuildState is the last recorded fact about a build.
type BuildState string

// The states of a build.
const (
	BuildBuilding   BuildState = "BUILDING"
	BuildReady      BuildState = "READY"
	BuildFailed     BuildState = "FAILED"
	BuildSuperseded BuildState = "SUPERSEDED" // a newer build took its place before it ended
)

// BuildTransitions lists, for each state, the states that may follow it.
func BuildTransitions() map[BuildState][]BuildState {
	return map[BuildState][]BuildState{
		BuildBuilding:   {BuildReady, BuildFailed, BuildSuperseded},
		BuildReady:      {},
		BuildFailed:     {},
		BuildSuperseded: {},
	}
}

// Build makes the image of one version of an environment.
type Build struct {
	ID          BuildID
	Project     ProjectID
	Environment EnvironmentID
	Name        string // of the environment
	Version     int64
	State       BuildState
	Operation   *Operation // pending; nil when nothing is
	Failure     *Failure   // why it is FAILED, with the end of the setup's log
	Sandbox     SandboxID  // the builder; "" until there is one
	Process     ProcessID  // the setup, in the builder; "" until it runs
	Image       string     // of the base, pinned where it can be
	Layers      []Layer    // above it; READY only
	CreatedAt   time.Time
	UpdatedAt   time.Time
	Deadline    time.Time
	FinishedAt  time.Time // zero while BUILDING
}

// CreateEnvironment is keyed by its name: the same recipe is the same version, another
// one is the next (contract: A3). It builds nothing by itself.
type CreateEnvironment struct {
	Name   string
	Recipe Recipe
}

// BuildEnvironment is the input of a build (contract: A3). It supersedes an unfinished
// build of the same environment.
type BuildEnvironment struct {
	RequestID   string
	Environment string // name, or name@version
}

// ListEnvironments pages, by name.
type ListEnvironments struct {
	PageSize  int
	PageToken string
}

// EnvironmentPage is one page; NextPageToken is "" on the last.
type EnvironmentPage struct {
	Environments  []Environment
	NextPageToken string
}

// ListBuilds pages, newest first.
type ListBuilds struct {
	Environment string // name; "": of all
	PageSize    int
	PageToken   string
}

// BuildPage is one page; NextPageToken is "" on the last.
type BuildPage struct {
	Builds        []Build
	NextPageToken string
}

// BuildLog addresses a part of a build's log.
type BuildLog struct {
	ID     BuildID
	Offset int64 // bytes
	Follow bool
}

// EnvironmentService owns recipes. "base", "debian" and references of images are
// environments without a recipe, which need no build.
type EnvironmentService interface {
	CreateEnvironment(ctx context.Context, caller Caller, in CreateEnvironment) (Environment, error)
	GetEnvironment(ctx context.Context, caller Caller, name string) (Environment, error) // name, or name@version
	ListEnvironments(ctx context.Context, caller Caller, in ListEnvironments) (EnvironmentPage, error)
	DeleteEnvironment(ctx context.Context, caller Caller, name string) (Environment, error)
	BuildService
}

// BuildService builds environments.
type BuildService interface {
	BuildEnvironment(ctx context.Context, caller Caller, in BuildEnvironment) (Build, error)
	GetBuild(ctx context.Context, caller Caller, id BuildID) (Build, error)
	ListBuilds(ctx context.Context, caller Caller, in ListBuilds) (BuildPage, error)
	StreamBuildLog(ctx context.Context, caller Caller, in BuildLog, yield func(OutputChunk) error) error
}
