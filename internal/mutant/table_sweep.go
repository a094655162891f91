package mutant

// sweeps are the traps of reconcilers.
func sweeps() []Mutant {
	return []Mutant{
		{
			Name: "T26", Trap: 26, File: "fleet/sweep_instances.go",
			Mistake: "the plan has just found it unwanted, so it is destroyed without another look, while an attempt is creating it",
			Edits:   edit("\tif !unwanted(r, found, holdfast.Observation{Instance: d.ref.Instance, Incarnation: d.ref.Incarnation}, h.ID) {\n\t\treturn reconcile.ErrSkipped\n\t}\n", ""),
			Noticed: noticed(tests("fleet", "TestT26_AnOrphanThatBecameWantedIsLeftAlone")),
		},
		{
			Name: "T27", Trap: 27, File: "hostagent/converge.go",
			Mistake: "what the runtime cannot tell about is not there any more",
			Edits:   edit("\tif err != nil {\n\t\treturn planned{}, seen, fmt.Errorf(\"inspect: %w\", err)\n\t}\n", "\tif err != nil {\n\t\tseen.Phase = runtime.PhaseAbsent\n\t}\n"),
			Noticed: noticed(tests("hostagent", "TestT27_AFailedLookIsNeverTakenForGone")),
		},
		{
			Name: "T27 stale", Trap: 27, File: "orchestrator/sweep.go",
			Mistake: "the fleet's last known value, which its host did not confirm, is taken for the present one",
			Edits:   edit("\tcase seen.Stale, seen.State != holdfast.InstanceExited", "\tcase seen.State != holdfast.InstanceExited"),
			Noticed: noticed(tests("orchestrator", "TestT27_AStaleWordOfAnEndEndsNothing")),
		},
		{
			Name: "T28", Trap: 28, File: "reconcile/runner.go",
			Mistake: "a run that a person asks for has room beside the scheduled one, and both act on the same rows",
			Edits:   edit("turn: make(chan struct{}, 1)", "turn: make(chan struct{}, 2)"),
			Noticed: noticed(tests("reconcile", "TestT28_OverlappingRunsOfASweepDoNotOverlap")),
		},
		{
			Name: "T29", Trap: 29, File: "operation/read.go",
			Mistake: "pages are read by id and what is not due is left out afterwards, so a page without any ends the sweep",
			Edits: []Edit{
				{"\t\"fmt\"\n\t\"strconv\"\n", "\t\"fmt\"\n\t\"slices\"\n\t\"strconv\"\n"},
				{"\twhere := []string{\"state = 'PENDING'\", \"due_at <= $1\", \"claim_expires <= $2\"}\n\targs := []any{micros(now.Add(-f.Idle)), micros(now)}\n",
					"\twhere, args := []string{\"state = 'PENDING'\"}, []any{}\n"},
				{"\t\tat, id, err := parseDueKey(f.After)\n", "\t\t_, id, err := parseDueKey(f.After)\n"},
				{"append(where, \"(due_at, id) > ($3, $4)\"), append(args, at, id)", "append(where, \"id > $1\"), append(args, id)"},
				{"page(ctx, tx, where, args, \"due_at, id\", f.Limit)", "page(ctx, tx, where, args, \"id\", f.Limit)"},
				{"\t\treturn nil, fmt.Errorf(\"due operations: %w\", err)\n\t}\n\treturn ops, nil\n", "\t\treturn nil, fmt.Errorf(\"due operations: %w\", err)\n\t}\n" +
					"\treturn slices.DeleteFunc(ops, func(o Operation) bool { return o.Claimed(now) || o.DueAt.After(now.Add(-f.Idle)) }), nil\n"},
			},
			Noticed: noticed(tests("operation", "TestT29_WhatIsNotDueHidesNothing")),
		},
		{
			Name: "T30", Trap: 30, File: "reconcile/runner.go",
			Mistake: "a page's items are all begun at once, so that a backlog is a stampede",
			Edits:   edit("slots: make(chan struct{}, s.Concurrency)", "slots: make(chan struct{}, s.PageSize)"),
			Noticed: noticed(tests("reconcile", "TestT30_ABacklogWithoutAPaceIsBoundedToo")),
		},
		{
			Name: "T30 fleet", Trap: 30, File: "fleet/plan.go",
			Mistake: "a fleet that was down itself takes every host for lost at its first look",
			Edits:   edit("silent >= l.LostAfter && now.Sub(h.healthAt) >= l.LostAfter-l.SuspectAfter:", "silent >= l.LostAfter:"),
			Noticed: noticed(tests("fleet", "TestPlanHost", "TestT30_AFleetThatWasDownGivesNobodyUp")),
		},
		{
			Name: "T31", Trap: 31, File: "operation/claim.go",
			Mistake: "each attempt gives its operation a deadline of its own, so that one which never succeeds is never overdue",
			Edits:   edit("attempts = attempts + 1, waits_for = ''", "attempts = attempts + 1, deadline = $4, waits_for = ''"),
			Noticed: noticed(tests("operation", "TestT31_AttemptsNeverPushTheDeadlineOut")),
		},
	}
}

// reads are the traps of read-repair.
func reads() []Mutant {
	return []Mutant{
		{
			Name: "T32", Trap: 32, File: "rpc/hop/hop.go",
			Mistake: "a 404 is a 404: that of a proxy, or of a path that an older host lacks, counts as the host's word that there is no such instance",
			Edits: edit("\tcode := holdfast.Internal\n\tif res.StatusCode == http.StatusBadGateway",
				"\tcode := holdfast.Internal\n\tif res.StatusCode == http.StatusNotFound {\n\t\tcode = holdfast.NotFound\n\t}\n\tif res.StatusCode == http.StatusBadGateway"),
			Noticed: noticed(tests("rpc/host", "TestT32_NeverSeenIsToldFromUnreachable")),
		},
		{
			Name: "T33", Trap: 33, File: "reconcile/repair.go",
			Mistake: "what the authority does not know it need not be asked for again",
			Edits:   edit("\t\tdelete(r.flights, id)\n", "\t\tif !errors.Is(f.err, ErrNotFound) {\n\t\t\tdelete(r.flights, id)\n\t\t}\n"),
			Noticed: noticed(tests("reconcile", "TestT33_NotFoundIsAskedAgain")),
		},
		{
			Name: "T34", Trap: 34, File: "fleet/read.go",
			Mistake: "the answer is stored over whatever is recorded by now, since it was asked for just before",
			Edits:   edit("stood = found && cur.revision == read", "stood = found"),
			Noticed: noticed(tests("fleet", "TestT34_ARepairDoesNotOverwriteWhatIsNewer")),
		},
		{
			Name: "T35", Trap: 35, File: "reconcile/repair.go",
			Mistake: "a call is not noted for others to join, so every reader who misses asks the authority",
			Edits:   edit("\t\tr.flights[id] = f\n", ""),
			Noticed: noticed(tests("reconcile", "TestT35_ConcurrentMissesShareOneCallAndNoCallerEndsIt")),
		},
	}
}
