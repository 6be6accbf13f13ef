-- Share key names, states and cleanup of staged writes (docs/reference/functions.md, "Staged writes"). A write is
-- staged in pieces by several processes, committed in one step, and published as jobs piece by piece. Each queue of the
-- write has a manifest; the manifest of its home queue holds the decision. Every key of a write expires: before the
-- commit after the writer's time to live, after it in KEEP.

local SCAN = G.rows.scan
local S = G.staging

S.KEEP = 30 * 86400000 -- how long a committed write can wait to be published
S.LISTS_MAX = 100 -- lists deleted in one call
S.QUEUES_MAX = 1000 -- queues of one write
local REPORTS_MAX, DETAILS_MAX = 1000, 100 -- reports of a queue; queues of one report
local DRIVERS_MAX = 1000
local STAMP_KEEP = 86400000 -- an overwrite that takes longer starts again

-- Return key names: manifest, attempts that have staged, winners by place, queues besides the home, drivers.
S.write = function(q, id)
  local stem = q.P .. 'write:' .. id
  return { id = id, manifest = stem, tried = stem .. ':tried', won = stem .. ':won', queues = stem .. ':queues',
    drivers = stem .. ':drivers' }
end

-- Return queues besides the home that are still to report, `most` at most.
S.queues_of = function(w, most) return redis.call('SRANDMEMBER', w.queues, most or S.QUEUES_MAX) end

S.list = function(w, attempt) return w.manifest .. ':try:' .. attempt end

-- Return the key with the number of the last committed micro-batch of a streaming query.
local function ledger(q, query) return q.P .. 'write-stream:' .. query end

-- Return the state of the write: open, prepared, committed, done, aborted; 'absent' = never begun, or expired.
S.state = function(q, w, query, batch)
  local state = redis.call('HGET', w.manifest, 'state')
  if state then return state end
  if query ~= '' then
    local last = tonumber(redis.call('GET', ledger(q, query)))
    if last and batch <= last then return 'done' end
  end
  return 'absent'
end

-- Return the ballot of the manifest: '<number>:<token of the decider>', or ''.
-- Return the write of a request, and its state.
S.read = function(q, r)
  local w = S.write(q, r.write)
  return w, S.state(q, w, r.query, r.batch)
end

S.ballot = function(w) return redis.call('HGET', w.manifest, 'ballot') or '' end

S.number_of = function(ballot) return G.count_of(string.match(ballot, '^%d+')) end

-- Set a ballot above the present one and above `floor`; return it. Earlier ballots can no longer commit.
S.raise_ballot = function(q, w, token, floor)
  local number = math.max(G.now(q), S.number_of(S.ballot(w)), floor) + 1
  local ballot = G.int(number) .. ':' .. token
  redis.call('HSET', w.manifest, 'ballot', ballot)
  redis.call('UNLINK', w.won)
  return ballot
end

-- Return the number of the last commit in this queue: it changes with each, before the first piece is published.
S.last_commit = function(q) return G.count_of(redis.call('GET', q.last_write)) end

S.count_commit = function(q)
  redis.call('SET', q.last_write, G.int(math.max(G.now(q), S.last_commit(q) + 1)), 'PX', STAMP_KEEP)
end

-- Count a change, so that a cleanup that was planned before it is rejected. ttl: ms the write is kept from now on.
S.touch = function(q, w, ttl)
  G.bump(w.manifest, 'changes')
  redis.call('HSET', w.manifest, 'at', G.int(G.now(q)))
  if ttl then S.extend(w, ttl) end
end

-- The index lives as long as its members may, and expires if the queue is abandoned.
S.register = function(q, w, now)
  redis.call('ZADD', q.writes, now, w.id)
  redis.call('PEXPIRE', q.writes, S.KEEP)
end

-- keep: how long the final state is remembered, in ms.
S.begin = function(q, w, home, query, ttl, keep)
  local now = G.int(G.now(q))
  redis.call('HSET', w.manifest, 'state', 'open', 'home', home, 'query', query, 'at', now, 'keep', G.int(keep),
    'ttl', G.int(ttl))
  redis.call('UNLINK', w.drivers)
  redis.call('PERSIST', w.manifest)
  S.register(q, w, now)
  S.extend(w, ttl)
end

S.add_driver = function(w, driver)
  if redis.call('SCARD', w.drivers) >= DRIVERS_MAX then redis.call('SPOP', w.drivers) end
  redis.call('SADD', w.drivers, driver)
end

S.has_driver = function(w, driver) return driver == '' or redis.call('SISMEMBER', w.drivers, driver) == 1 end

S.expire = function(w, ttl)
  for _, key in ipairs({ w.manifest, w.tried, w.won, w.queues, w.drivers }) do redis.call('PEXPIRE', key, G.int(ttl)) end
end

-- Never shortens: another driver may have prepared or committed.
S.extend = function(w, ttl) S.expire(w, math.max(redis.call('PTTL', w.manifest), ttl)) end

S.record_batch = function(q, query, batch, keep)
  local last = G.count_of(redis.call('GET', ledger(q, query)))
  redis.call('SET', ledger(q, query), G.int(math.max(last, batch)), 'PX', keep)
  G.record_temporary(q, 'write-stream:' .. query, G.now(q), keep)
end

-- Delete the lists of some attempts. Return true if there may be more.
S.delete_some = function(w)
  local attempts = redis.call('SPOP', w.tried, S.LISTS_MAX)
  for i = 1, #attempts do redis.call('UNLINK', S.list(w, attempts[i])) end
  return #attempts == S.LISTS_MAX
end

-- Delete the lists of some attempts of a driver. Return the next cursor; '0' at the end.
S.delete_some_of = function(w, driver, cursor)
  local found = redis.call('SSCAN', w.tried, cursor, 'MATCH', driver .. '.*', 'COUNT', S.LISTS_MAX)
  for _, attempt in ipairs(found[SCAN.found]) do
    redis.call('UNLINK', S.list(w, attempt))
    redis.call('SREM', w.tried, attempt)
  end
  return found[SCAN.cursor]
end

local UNFINISHED = { open = true, prepared = true, committed = true, aborted = true }

-- Check a key of a write (without P): nil if it is consistent, 'orphan' = its manifest is gone, 'unlisted' = no process
-- would find the unfinished write.
S.mismatch = function(q, suffix)
  local id = string.match(suffix, '^write:([^:]+)')
  if not id or redis.call('EXISTS', q.P .. suffix) == 0 then return nil end
  local w = S.write(q, id)
  if redis.call('EXISTS', w.manifest) == 0 then
    return not redis.call('ZSCORE', q.writes, id) and 'orphan' or nil
  end
  if suffix ~= 'write:' .. id or redis.call('ZSCORE', q.writes, id) then return nil end
  local state = G.pcall('HGET', w.manifest, 'state')
  if type(state) ~= 'string' or not UNFINISHED[state] then return nil end
  return (state ~= 'aborted' or redis.call('EXISTS', w.tried) == 1) and 'unlisted' or nil
end

S.repair = function(q, suffix, now)
  local problem = S.mismatch(q, suffix)
  if problem == 'orphan' then return redis.call('UNLINK', q.P .. suffix) end
  if problem then S.register(q, S.write(q, string.match(suffix, '^write:([^:]+)')), G.int(now)) end
  return problem and 1 or 0
end

-- Record the totals of another queue of the write; a repeated call that knows no totals changes nothing.
S.count_queue = function(w, queue, jobs, others)
  if jobs + others > 0 then redis.call('HSET', w.manifest, 'in:' .. queue, G.int(jobs) .. ',' .. G.int(others)) end
end

local PARTITION = '^(.+)~p~[0-9a-z][0-9a-z][0-9a-z][0-9a-z]$' -- name of a partition other than the first

-- The partitions of a queue count as one.
local function counts_by_queue(fields)
  local counts, names, jobs, others = {}, {}, 0, 0
  for i = 1, #fields, 2 do
    local queue = string.match(fields[i], '^in:(.*)$')
    if queue then
      local added, not_added = string.match(fields[i + 1], '^(%d+),(%d+)$')
      added, not_added = G.count_of(added), G.count_of(not_added)
      jobs, others = jobs + added, others + not_added
      queue = string.match(queue, PARTITION) or queue
      if not counts[queue] then
        names[#names + 1] = queue
        counts[queue] = { jobs = 0, others = 0 }
      end
      counts[queue].jobs, counts[queue].others = counts[queue].jobs + added, counts[queue].others + not_added
    end
  end
  local queues = {}
  for i = 1, math.min(#names, DETAILS_MAX) do
    local of = counts[names[i]]
    queues[i] = G.new.added_in_queue({ queue = names[i], jobs = of.jobs, others = of.others })
  end
  return queues, jobs, others
end

-- row: as `write_reports` returns it.
S.add_report = function(q, row)
  redis.call('LPUSH', q.write_reports, cmsgpack.pack(row))
  redis.call('LTRIM', q.write_reports, 0, REPORTS_MAX - 1)
  redis.call('PEXPIRE', q.write_reports, S.KEEP)
end

-- Store the report of a write that is done at its home.
local function report(q, w)
  local h = G.pick(w.manifest, 'query', 'jobs', 'others', 'facts')
  local fields = redis.call('HLEN', w.manifest) <= S.QUEUES_MAX + 50 and redis.call('HGETALL', w.manifest) or {}
  local queues, jobs, others = counts_by_queue(fields)
  local own, own_others, now = G.count_of(h.jobs), G.count_of(h.others), G.now(q)
  S.add_report(q, G.new.write_report({
    id = w.id, query = h.query or '', at = now, jobs = jobs + own, others = others + own_others, facts = h.facts or '',
    own = G.new.added_jobs({ jobs = own, others = own_others }), queues = queues,
    repeats = 0,
  }))
end

-- Finish a published write at its home.
S.complete = function(q, w, keep)
  report(q, w)
  S.finish(q, w, 'done', keep)
end

-- keep: ms for which the final state is remembered, so that late callers are rejected; 0 = not at all.
S.finish = function(q, w, state, keep)
  redis.call('ZREM', q.writes, w.id)
  redis.call('UNLINK', w.tried, w.won, w.queues, w.drivers)
  if keep > 0 then
    redis.call('HSET', w.manifest, 'state', state)
    G.expire_temporary(q, 'write:' .. w.id, G.now(q), keep)
  else
    redis.call('UNLINK', w.manifest)
  end
end
