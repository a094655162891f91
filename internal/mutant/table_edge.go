package mutant

// edges are the traps of guests, cancellation and cleaning up.
func edges() []Mutant {
	return []Mutant{
		{
			Name: "T44", Trap: 44, File: "guestagent/write.go",
			Mistake: "an upload that broke off ends like any other, and half a file takes the old one's place",
			Edits: edit("\treturn holdfast.FileWritten{Bytes: n, SHA256: hex.EncodeToString(hash.Sum(nil))}, err\n",
				"\tif errors.As(err, new(contentError)) {\n\t\terr = nil\n\t}\n\treturn holdfast.FileWritten{Bytes: n, SHA256: hex.EncodeToString(hash.Sum(nil))}, err\n"),
			Noticed: noticed(tests("guestagent", "TestT44_BrokenWriteLeavesTheOldFileAndNothingElse")),
		},
		{
			Name: "T45", Trap: 45, File: "guestagent/process.go",
			Mistake: "a request id is noted once its process runs, so a repeat that comes meanwhile starts another",
			Edits: []Edit{
				{"\t\ts.requests[in.RequestID] = r\n\t\treturn r, true, nil\n", "\t\treturn r, true, nil\n"},
				{"\t\tif err != nil {\n\t\t\ts.mu.Lock()\n\t\t\tdelete(s.requests, id)\n\t\t\ts.mu.Unlock()\n\t\t}\n", "\t\tif err == nil {\n\t\t\ts.mu.Lock()\n\t\t\ts.requests[id] = r\n\t\t\ts.mu.Unlock()\n\t\t}\n"},
			},
			Noticed: noticed(tests("guestagent", "TestA14_T45_StartsOncePerRequestID")),
		},
		{
			Name: "T45 client", Trap: 45, File: "client/process.go",
			Mistake: "a start whose answer was lost is repeated on the caller's behalf, with a request id or without",
			Edits: edit("\tout, err := attempt(ctx, c.settings.attempt, func(ctx context.Context) (holdfast.Process, error) {\n\t\treturn c.services.Processes.StartProcess(",
				"\trequest := IncompleteError{Method: \"StartProcess\", RequestID: in.RequestID, Request: in}\n"+
					"\tout, err := attempts(ctx, c, holdfast.OperationCreate, request, func(ctx context.Context) (holdfast.Process, error) {\n\t\treturn c.services.Processes.StartProcess("),
			Noticed: noticed(tests("client", "TestT45_AStartIsNeverRepeated")),
		},
		{
			Name: "T46", Trap: 46, File: "fleet/ensure.go",
			Mistake: "what the host has done is stored under the caller's context, and not at all once the caller has left",
			Edits:   edit("context.WithTimeout(context.WithoutCancel(ctx), s.limits.CallTimeout)", "context.WithTimeout(ctx, s.limits.CallTimeout)"),
			Noticed: noticed(tests("fleet", "TestT46_AnAnswerIsStoredForACallerThatLeft")),
		},
		{
			Name: "T46 commit", Trap: 46, File: "store/postgres/session.go",
			Mistake: "a commit that failed has written nothing, also where the connection broke before the answer",
			Edits:   edit("\treturn errors.Join(fmt.Errorf(\"%w: %w\", store.ErrUnknownOutcome, err), drop(s.conn))\n", "\treturn errors.Join(fmt.Errorf(\"nothing was written: %w\", err), drop(s.conn))\n"),
			Noticed: noticed(tests("store/postgres", "TestT46_ABrokenCommitHasAnUnknownOutcome")),
		},
		{
			Name: "T47", Trap: 47, File: "hostagent/steps.go",
			Mistake: "a stop that fails is only logged, and the instance counts as gone",
			Edits: edit("\tif err := driver.Stop(ctx, ref); err != nil {\n\t\treturn fmt.Errorf(\"stop: %w\", err)\n\t}\n\tseen, err := driver.Inspect(ctx, ref)\n"+
				"\tif err != nil {\n\t\treturn fmt.Errorf(\"inspect what was stopped: %w\", err)\n\t}\n"+
				"\tif seen.Phase != runtime.PhaseAbsent {\n\t\treturn fmt.Errorf(\"it was stopped, yet the runtime says %s\", seen.Phase)\n\t}\n\treturn nil\n",
				"\tif err := driver.Stop(ctx, ref); err != nil {\n\t\tm.agent.log.Warn(\"stop\", \"instance\", ref.Instance, \"error\", err)\n\t}\n\treturn nil\n"),
			Noticed: noticed(tests("hostagent", "TestT47_GoneIsSaidOnlyWhenTheRuntimeHasNothingLeft")),
		},
	}
}

// stores are the traps of the group commit.
func stores() []Mutant {
	return []Mutant{
		{
			Name: "T48", Trap: 48, File: "store/sqlite/writer.go",
			Mistake: "who has failed need not wait for the others' commit, so an error leaves although what it was decided on may not survive",
			Edits: edit("\t\t\tw.stats.apart.Add(1)\n\t\t\tw.apart()\n\t\t\treturn\n\t\t}\n", "\t\t\tw.stats.apart.Add(1)\n\t\t\tw.apart()\n\t\t\treturn\n\t\t}\n"+
				"\t\tif last := len(g.members) - 1; g.outcomes[last].err != nil {\n\t\t\tm.tell(g.outcomes[last].verdict())\n"+
				"\t\t\tg.members, g.outcomes = g.members[:last], g.outcomes[:last]\n\t\t}\n"),
			Noticed: noticed(tests("store/sqlite", "TestT48_NothingLeavesBeforeTheCommit")),
		},
		{
			Name: "T48 sinks", Trap: 48, File: "store/sqlite/writer.go",
			Mistake: "when one member's savepoint cannot be undone, all members of its group fail",
			Edits: edit("\t\t\tw.stats.apart.Add(1)\n\t\t\tw.apart()\n", "\t\t\tw.stats.apart.Add(1)\n\t\t\tw.reset()\n\t\t\tw.group = nil\n"+
				"\t\t\tfor _, m := range g.members {\n\t\t\t\tm.tell(verdict{err: err})\n\t\t\t}\n"),
			Noticed: noticed(tests("store/sqlite", "TestT48_FailedGroupRunsApart/memory=true/ROLLBACK_TO_member_1_fails")),
		},
		{
			Name: "T48 frees", Trap: 48, File: "store/sqlite/writer.go",
			Mistake: "a member that fails leaves what it wrote in the group's transaction, to be committed with the rest",
			Edits: edit("\tw.play(out, m)\n\tif out.err != nil {\n\t\tif err := w.exec(stepUndo); err != nil {\n\t\t\treturn err\n\t\t}\n\t}\n\treturn w.exec(stepRelease)\n",
				"\tw.play(out, m)\n\treturn w.exec(stepRelease)\n"),
			Noticed: noticed(tests("store/sqlite", "TestT48_RandomFaults", "TestConformanceOfFiles"), schedules()),
		},
	}
}

// boots are the traps of a boot that happens twice.
func boots() []Mutant {
	return []Mutant{
		{
			Name: "T49", Trap: 49, File: "hostagent/plan.go",
			Mistake: "what the runtime does not have has not run, whatever the record says, so a restart boots it again",
			Edits:   edit("\tran := r.Started || seen == ", "\tran := seen == "),
			Noticed: noticed(tests("hostagent", "TestT49_ARestartNeverBootsAgain", "TestPlanDecidesTheNextStep"), hostModel()),
		},
		{
			Name: "T49 sync", Trap: 49, File: "hostagent/records.go",
			Mistake: "that a boot may have begun is written and not synced, so a crash of the machine forgets it",
			Edits:   edit("return survivesHost || after.Started && !before.Started || after.Removing", "return survivesHost || after.Removing"),
			Noticed: noticed(tests("hostagent", "TestT49_WhatOutlivesTheMachineIsSynced")),
		},
		{
			Name: "T49 fleet", Trap: 49, File: "fleet/judge.go",
			Mistake: "an instance whose host is lost is placed on another under the same incarnation, and the first host comes back",
			Edits: edit("\tdefault:\n\t\tr.call = true\n\t\treturn r\n", "\tdefault:\n\t\tr.call = true\n"+
				"\t\tif l.Desired == holdfast.DesiredRunning && next.hostHealth == holdfast.HostLost {\n\t\t\tr.place, r.write = true, true\n\t\t}\n\t\treturn r\n"),
			Noticed: noticed(tests("fleet", "TestT49_ALostHostsIncarnationIsPlacedNowhereElse"), instanceModel()),
		},
	}
}

// copies are the traps of a boot's disk that another one is made from.
func copies() []Mutant {
	return []Mutant{
		{
			Name: "T50", Trap: 50, File: "runtime/runc/checkpoint.go",
			Mistake: "a checkpoint has all of the writable layer, with its instance's name and address",
			Edits:   edit("layer.Pack(ctx, d.files(ref).upper(), w, ofThisBoot()...)", "layer.Pack(ctx, d.files(ref).upper(), w)"),
			Noticed: noticed(tests("runtime/runc", "TestConformance/T50_ACheckpointHasTheFilesAndNoSecret")),
		},
		{
			Name: "T50 fork", Trap: 50, File: "orchestrator/fork.go",
			Mistake: "a fork takes over all of its source's spec, so that its instance belongs to the source",
			Edits:   edit("r.Source, r.Environment, r.Spec.Image, r.Spec.Layers = c.ID, c.Environment, c.Spec.Image, c.Spec.Layers", "r.Source, r.Environment, r.Spec = c.ID, c.Environment, c.Spec.InstanceSpec"),
			Noticed: noticed(tests("orchestrator", "TestT50_AForkIsAnotherSandboxWithTheDiskOfItsSource")),
		},
		{
			Name: "T53 fork", Trap: 53, File: "orchestrator/fork.go",
			Mistake: "a fork looks at its checkpoint without holding it, which a delete removes the blobs of meanwhile",
			Edits:   edit("oneCheckpoint(ctx, tx, in.Source, tx.ForShare())", "oneCheckpoint(ctx, tx, in.Source, \"\")"),
			Noticed: noticed(tests("orchestrator", "TestOnPostgres/TestT53_ADeleteWaitsForAForkThatIsBeingRecorded")),
		},
		{
			Name: "T53 waiting", Trap: 53, File: "orchestrator/environment_resolve.go",
			Mistake: "a session looks at the build that it is about to wait for without holding it, and the build ends meanwhile",
			Edits:   edit("oneBuild(ctx, tx, found[0].ID, tx.ForShare())", "oneBuild(ctx, tx, found[0].ID, \"\")"),
			Noticed: noticed(tests("orchestrator", "TestOnPostgres/TestT53_ABuildsEndWaitsForASessionThatBeginsToWait")),
		},
		{
			Name: "T53 layers", Trap: 53, File: "orchestrator/checkpoint_delete.go",
			Mistake: "a delete removes every blob of its checkpoint, those too that forks are made of",
			Edits:   edit("\t\tif needed[key] {\n\t\t\tcontinue\n\t\t}\n", "\t\t_ = needed\n"),
			Noticed: noticed(tests("orchestrator", "TestE4_SharedLayersStayUntilNothingIsMadeOfThem")),
		},
		{
			Name: "T52 blobs", Trap: 52, File: "orchestrator/checkpoint_sweep.go",
			Mistake: "a blob of a checkpoint that the database does not know counts as nobody's, and is removed",
			Edits:   edit("\t\treturn err == nil && at.Forgets(born)\n", "\t\treturn err == nil && at.RecoveredAt.IsZero() && !born.IsZero()\n"),
			Noticed: noticed(tests("orchestrator", "TestT52_BlobsOfUnknownCheckpointsAreKept")),
		},
		{
			Name: "T38 checkpoint", Trap: 38, File: "orchestrator/checkpoint_attempt.go",
			Mistake: "a checkpoint whose operation is superseded fails, and its host is never told to end the copy",
			Edits:   edit("c.State, c.Copying = holdfast.CheckpointFailed, true", "c.State, c.Copying = holdfast.CheckpointFailed, false"),
			Noticed: noticed(tests("orchestrator", "TestA7_ASuspendOrDeleteTakesACheckpointsPlace")),
		},
	}
}

// databases are the traps of wrong databases and of rows that a decision misses.
func databases() []Mutant {
	return []Mutant{
		{
			Name: "T52", Trap: 52, File: "reconcile/plan.go",
			Mistake: "a sweep that would destroy unusually much raises the alarm, and destroys it",
			Edits: edit("\tif a.Alarm = Guard(len(there), len(a.Destroy)); a.Alarm != nil {\n\t\ta.Destroy = nil\n\t}\n",
				"\ta.Alarm = Guard(len(there), len(a.Destroy))\n"),
			Noticed: noticed(tests("reconcile", "TestT52_AnEmptyDatabaseDestroysNothing"), tests("hostagent", "TestT52_ASweepThatWouldDestroyUnusuallyMuchDestroysNothing")),
		},
		{
			Name: "T52 epoch", Trap: 52, File: "hostagent/ensure.go",
			Mistake: "orders of a database from before the recovery are refused where they run something, and obeyed where they destroy",
			Edits: edit("\tif err := a.obey(order{level.Cluster, level.Epoch, string(level.Instance)}); err != nil {\n",
				"\tif err := a.obey(order{level.Cluster, level.Epoch, string(level.Instance)}); err != nil && level.Desired != holdfast.DesiredAbsent {\n"),
			Noticed: noticed(tests("hostagent", "TestT52_AnOldDatabasesOrderIsRefusedAfterARestartToo")),
		},
		{
			Name: "T53", Trap: 53, File: "orchestrator/quota.go",
			Mistake: "the quota is read and then counted up, so that creates which commit at once all find the last room",
			Edits: edit("\tw := r.wants()\n\tres, err := tx.ExecContext(ctx, `UPDATE quota_shard SET sandboxes = sandboxes + 1, cpu_millis = cpu_millis + $3, memory_bytes = memory_bytes + $4\n"+
				"\t\tWHERE project = $1 AND shard = $2 AND sandboxes < sandboxes_cap AND cpu_millis_cap - cpu_millis >= $3 AND memory_bytes_cap - memory_bytes >= $4`,\n",
				"\tw, room := r.wants(), false\n"+
					"\terr := tx.QueryRowContext(ctx, `SELECT sandboxes < sandboxes_cap AND cpu_millis_cap - cpu_millis >= $3 AND memory_bytes_cap - memory_bytes >= $4\n"+
					"\t\tFROM quota_shard WHERE project = $1 AND shard = $2`, string(r.Project), r.Shard, w.CPUMillis, w.MemoryBytes).Scan(&room)\n"+
					"\tif err == nil && !room {\n\t\terr = errShardFull\n\t}\n\tif err != nil {\n\t\treturn err\n\t}\n"+
					"\tres, err := tx.ExecContext(ctx, `UPDATE quota_shard SET sandboxes = sandboxes + 1, cpu_millis = cpu_millis + $3, memory_bytes = memory_bytes + $4\n"+
					"\t\tWHERE project = $1 AND shard = $2`,\n"),
			Noticed: noticed(tests("orchestrator", "TestOnPostgres/TestT53_TheLastRoomOfAShardIsTakenOnce")),
		},
		{
			Name: "T53 room", Trap: 53, File: "fleet/place.go",
			Mistake: "the host had room when it was chosen, so its room is taken without another look",
			Edits:   edit("\t\tWHERE id = $3 AND `+hasRoom, r.cpu, r.memory, string(r.host)))\n", "\t\tWHERE id = $3`, r.cpu, r.memory, string(r.host)))\n"),
			Noticed: noticed(tests("fleet", "TestT53_SixteenFreeMeansSixteenPlacedHoweverManyAsk")),
		},
	}
}
