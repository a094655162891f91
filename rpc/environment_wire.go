package rpc

import (
	"github.com/holdfast-dev/holdfast"
	v1 "github.com/holdfast-dev/holdfast/api/holdfast/v1"
)

func environmentToWire(e holdfast.Environment) *v1.Environment {
	return &v1.Environment{
		Id: string(e.ID), Project: string(e.Project), Name: text(e.Name), Version: e.Version, Recipe: recipeToWire(e.Recipe), Build: string(e.Build),
		CreatedAt: stamp(e.CreatedAt), UpdatedAt: stamp(e.UpdatedAt), DeletedAt: stamp(e.DeletedAt),
	}
}

func environmentFromWire(e *v1.Environment) holdfast.Environment {
	return holdfast.Environment{
		ID: holdfast.EnvironmentID(e.GetId()), Project: holdfast.ProjectID(e.GetProject()), Name: e.GetName(), Version: e.GetVersion(),
		Recipe: recipeFromWire(e.GetRecipe()), Build: holdfast.BuildID(e.GetBuild()),
		CreatedAt: instant(e.GetCreatedAt()), UpdatedAt: instant(e.GetUpdatedAt()), DeletedAt: instant(e.GetDeletedAt()),
	}
}

// recipeToWire leaves out what is the default.
func recipeToWire(r holdfast.Recipe) *v1.Recipe {
	out := &v1.Recipe{
		Base: text(r.Base), Setup: text(r.Setup), Env: texts(r.Env), Workdir: text(r.Workdir), User: text(r.User), Resources: resourcesToWire(r.Resources),
		Files: each(r.Files, func(f holdfast.RecipeFile) *v1.RecipeFile {
			return &v1.RecipeFile{Path: text(f.Path), Content: text(f.Content), Mode: f.Mode}
		}),
		Ports:   each(r.Ports, func(port int) int32 { return int32(port) }),
		Egress:  enum[v1.Sandbox_Egress](v1.Sandbox_Egress_value, r.Egress),
		Restart: enum[v1.Restart_Policy](v1.Restart_Policy_value, r.Restart), Timeout: span(r.Timeout),
		Repository: repositoryToWire(r.Repository),
	}
	if h := r.Hooks; h != (holdfast.Hooks{}) {
		out.Hooks = &v1.Hooks{OnSuspend: text(h.OnSuspend), OnResume: text(h.OnResume), OnDelete: text(h.OnDelete)}
	}
	return out
}

func recipeFromWire(r *v1.Recipe) holdfast.Recipe {
	h := r.GetHooks()
	return holdfast.Recipe{
		Base: r.GetBase(), Setup: r.GetSetup(), Env: filled(r.GetEnv()), Workdir: r.GetWorkdir(), User: r.GetUser(),
		Resources: resourcesFromWire(r.GetResources()),
		Files: each(r.GetFiles(), func(f *v1.RecipeFile) holdfast.RecipeFile {
			return holdfast.RecipeFile{Path: f.GetPath(), Content: f.GetContent(), Mode: f.GetMode()}
		}),
		Ports:   each(r.GetPorts(), func(port int32) int { return int(port) }),
		Egress:  word[holdfast.Egress](v1.Sandbox_Egress_name, r.GetEgress()),
		Restart: word[holdfast.Restart](v1.Restart_Policy_name, r.GetRestart()), Timeout: r.GetTimeout().AsDuration(),
		Hooks:      holdfast.Hooks{OnSuspend: h.GetOnSuspend(), OnResume: h.GetOnResume(), OnDelete: h.GetOnDelete()},
		Repository: repositoryFromWire(r.GetRepository()),
	}
}

func repositoryToWire(r *holdfast.Repository) *v1.Repository {
	if r == nil {
		return nil
	}
	return &v1.Repository{Url: text(r.URL), Ref: text(r.Ref)}
}

func repositoryFromWire(r *v1.Repository) *holdfast.Repository {
	if r == nil {
		return nil
	}
	return &holdfast.Repository{URL: r.GetUrl(), Ref: r.GetRef()}
}

// environmentsToWire leaves recipes out, which may be large.
func environmentsToWire(page holdfast.EnvironmentPage) *v1.ListEnvironmentsResponse {
	return &v1.ListEnvironmentsResponse{NextPageToken: page.NextPageToken, Environments: each(page.Environments, func(e holdfast.Environment) *v1.Environment {
		e.Recipe = holdfast.Recipe{}
		out := environmentToWire(e)
		out.Recipe = nil
		return out
	})}
}

func environmentsFromWire(page *v1.ListEnvironmentsResponse) holdfast.EnvironmentPage {
	return holdfast.EnvironmentPage{Environments: each(page.GetEnvironments(), environmentFromWire), NextPageToken: page.GetNextPageToken()}
}

func buildToWire(b holdfast.Build) *v1.Build {
	out := &v1.Build{
		Id: string(b.ID), Project: string(b.Project), Environment: string(b.Environment), Name: text(b.Name), Version: b.Version,
		State: enum[v1.Build_State](v1.Build_State_value, b.State), Failure: failureToWire(b.Failure), Sandbox: string(b.Sandbox),
		Process: string(b.Process), Image: text(b.Image), Layers: each(b.Layers, layerToWire),
		CreatedAt: stamp(b.CreatedAt), UpdatedAt: stamp(b.UpdatedAt), Deadline: stamp(b.Deadline), FinishedAt: stamp(b.FinishedAt),
	}
	if b.Operation != nil {
		out.Operation = operationToWire(*b.Operation)
	}
	return out
}

func buildFromWire(b *v1.Build) holdfast.Build {
	out := holdfast.Build{
		ID: holdfast.BuildID(b.GetId()), Project: holdfast.ProjectID(b.GetProject()), Environment: holdfast.EnvironmentID(b.GetEnvironment()),
		Name: b.GetName(), Version: b.GetVersion(), State: word[holdfast.BuildState](v1.Build_State_name, b.GetState()),
		Failure: failureFromWire(b.GetFailure()), Sandbox: holdfast.SandboxID(b.GetSandbox()), Process: holdfast.ProcessID(b.GetProcess()),
		Image: b.GetImage(), Layers: each(b.GetLayers(), layerFromWire),
		CreatedAt: instant(b.GetCreatedAt()), UpdatedAt: instant(b.GetUpdatedAt()), Deadline: instant(b.GetDeadline()), FinishedAt: instant(b.GetFinishedAt()),
	}
	if op := b.GetOperation(); op != nil {
		o := operationFromWire(op)
		out.Operation = &o
	}
	return out
}

func layerToWire(l holdfast.Layer) *v1.Layer {
	return &v1.Layer{Key: text(l.Key), Size: l.Size, Sha256: text(l.SHA256), Base: text(l.Base)}
}

func layerFromWire(l *v1.Layer) holdfast.Layer {
	return holdfast.Layer{Key: l.GetKey(), Size: l.GetSize(), SHA256: l.GetSha256(), Base: l.GetBase()}
}

func buildsToWire(page holdfast.BuildPage) *v1.ListBuildsResponse {
	return &v1.ListBuildsResponse{Builds: each(page.Builds, buildToWire), NextPageToken: page.NextPageToken}
}

func buildsFromWire(page *v1.ListBuildsResponse) holdfast.BuildPage {
	return holdfast.BuildPage{Builds: each(page.GetBuilds(), buildFromWire), NextPageToken: page.GetNextPageToken()}
}
