// Package kill is rung 5 of the proof: the real programs as processes of their
// own, on real containers, killed and stopped at random while clients use them.
//
// A round starts a deployment, lets clients live the lives of sandboxes on it,
// and strikes at its processes as a seed says. Then it lets everything run again
// and holds it against what each client was told: nothing acknowledged is lost,
// nothing happened twice, and once all is deleted the machine and the databases
// are what they were.
package kill
