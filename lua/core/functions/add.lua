-- add: add one or many jobs in one step.
-- KEYS 1 meta   ARGV 1 packed {rows, quiet, layout} 2 (optional) mark   -> packed {now, results}
-- layout: number of the layout that the client knows (features/partitions/layout.lua), 0 = no partitions; may be absent.
-- mark: text that `confirm_durable` finds if the add was not lost (features/durability/functions/durability.lua)
-- row: {name, data, opts, id|'', delay, attempts, priority, lifo 0|1, ttl, run_at, ordering, dedup, parent, rank,
-- dependencies, fair key, batch, own keys}, cut after the last one given; `false` = not given
--   ordering: {key, concurrency, rate max, rate ms, bucket capacity mtok, refill mtok/s, cost mtok}, 0 = not given; {key}
--   dedup: {id, ttl ms, mode, until_started, extend, replace}, cut after mode if the others are false
--   rank: a rank that no priority has, or the rank of a LIFO job with a priority (features/ranks/ranks.lua)
--   parent: {id, queue name, generation}, in this queue or another (features/flows/functions/add_parent.lua); generation: of
--   one in another queue
--   batch: {`P` and id, stem} of the batch that the job has joined (features/job_batches)
--   own keys: `ownKeys` of the record, for a job that is replayed, which has no parent
--   dependencies: {policy, flat queue names and ids, generation} of jobs to wait for (features/flows/functions/depend.lua)
-- result: the new job's id, or {outcome, id}: 'duplicate' and 'skipped' with the id of the existing job, 'replaced'
-- and 'staged' with the id of the new job, 'cost' (more than the group's bucket holds: not added), 'parent' with the reason
-- ('gone', the parent's state, or 'ordering': not added), 'dependency' with the id of one that does not exist (not added),
-- 'backlog' with the maximum backlog of the fair key, which is reached (not added)
-- errors: ERR layout (the partition has another layout; nothing was added), OOM (not allow-oom: a full server rejects new jobs)
-- Bound: the rows given.

local JOB, DEDUPLICATION = G.rows.new_job, G.rows.deduplication
local NAME, DATA, OPTS, ID, DELAY = JOB.name, JOB.data, JOB.opts, JOB.id, JOB.delay
local ATTEMPTS, PRIORITY, DEDUP, PARENT = JOB.attempts, JOB.priority, JOB.deduplication, JOB.parent
local DEPENDENCIES, FAIR, ORDERING, GROUP = JOB.dependencies, JOB.fair, JOB.ordering, G.rows.ordering
local OWN_KEYS = JOB.own_keys
local REQUEST = G.requests.add
local STEPS_MAX = 40 -- 2^40 ids
local A, F = G.adding, G.fair

-- Issue ids for the rows without one, with one INCRBY and one EXISTS per 500 ids. Return nil if they must be issued
-- one by one: the counter was lost, a custom id is in the way, or a row may not be added.
local function issue_ids(q, rows)
  local auto, digits = 0, false
  for i = 1, #rows do
    local id = rows[i][ID]
    if not id or id == '' then
      if not rows[i][DEDUP] then auto = auto + 1 end
    elseif not digits and string.find(id, '^%d+$') then
      digits = true
    end
  end
  if auto == 0 or digits then return nil end
  local last = G.count_ids(q, auto)
  local ids, J = G.texts_after(last - auto, auto), q.J
  local keys = {}
  for i = 1, auto do keys[i] = J .. ids[i] end
  return G.sum_of('EXISTS', keys) == 0 and ids or nil
end

-- Issue one free id in doubling steps: a counter lost behind a million jobs passes them in a few reads.
local function next_free_id(q)
  for doubled = 0, STEPS_MAX do
    local id = G.int(G.count_ids(q, 2 ^ doubled))
    if not G.exists(q, id) then return id end
  end
  error('ERR no free job id found: the counter of ids is far behind', 0)
end

-- Read the places of the rows once: a key of a foreign type fails a bulk before its first row.
local function check_places(q)
  redis.call('XLEN', q.stream)
  redis.call('ZCARD', q.scheduled)
  redis.call('LLEN', q.lifo)
  redis.call('HLEN', q.meta)
end

-- trims: one trim of the events per call is enough, and not every call needs one. plain: 'plain' if the id was issued for
-- this job, 'chosen' if the caller chose it, false = the entry does not say so (core/fetch_plain.lua).
local function add_plain(q, now_text, quiet, id, row, trims, plain)
  local call, name, key = redis.call, row[NAME], q.J .. id
  local most = row[ATTEMPTS] and G.int(row[ATTEMPTS]) or '0'
  local entry
  if plain then
    entry = call('XADD', q.stream, '*', 'jobId', id, 'name', name, plain, now_text)
  else
    entry = call('XADD', q.stream, '*', 'jobId', id, 'name', name)
  end
  if rawget(q, 'channels') ~= false then G.ring(q) end
  local timeline = rawget(q, 'timeline') ~= false and G.new_timeline(q, id, 'waiting')
  if timeline then
    call('HSET', key, 'id', id, 'name', name, 'data', row[DATA], 'opts', row[OPTS], 'timestamp', now_text,
      'attemptsMade', '0', 'delay', '0', 'priority', '0', 'maxAttempts', most,
      'state', 'waiting', 'timeline', timeline)
  elseif plain == 'chosen' then
    call('HSET', key, 'id', id, 'name', name, 'data', row[DATA], 'opts', row[OPTS], 'timestamp', now_text,
      'attemptsMade', '0', 'delay', '0', 'priority', '0', 'maxAttempts', most,
      'state', 'waiting', 'eid', entry)
  else
    call('HSET', key, 'id', id, 'name', name, 'data', row[DATA], 'opts', row[OPTS], 'timestamp', now_text,
      'attemptsMade', '0', 'delay', '0', 'priority', '0', 'maxAttempts', most,
      'state', 'waiting')
  end
  -- An entry made in the millisecond of its job is found by the timestamp; any other entry id is stored.
  if plain ~= 'chosen' and string.find(entry, now_text .. '-', 1, true) ~= 1 then call('HSET', key, 'eid', entry) end
  if not quiet then A.tell(q, id, name, trims) end
end

local function backlog_reason(q, row)
  local reached = row[FAIR] and not rawget(q, 'any_backlog') and F.reached_backlog(q, row[FAIR])
  if reached then return 'backlog', G.int(reached) end
end

-- Write an event for a job that is not added as it is a duplicate, while clients want to know (`tellsStarts` of P:meta).
local function tell_duplicate(q, now, quiet, id, dedup_id)
  if quiet then return end
  local till = G.pcall('HGET', q.meta, 'tellsStarts')
  if type(till) == 'string' and G.count_of(till) > now then
    G.emit(q.events, 'deduplicated', id, 'deduplicationId', dedup_id)
  end
end

-- Return why a row is not added: outcome and the id of the existing job; nil = add. The third value can be
-- 'replaced', or
-- 'staged' with the id of the started job as the second.
local function reject_reason(q, now, quiet, row)
  local id, dedup = row[ID], row[DEDUP]
  if row[ORDERING] and A.too_costly(q, row[ORDERING]) then return 'cost', id or '' end
  if row[PARENT] then
    local invalid = A.invalid_parent(q, row[PARENT], row[ORDERING])
    if invalid then return 'parent', invalid end
  end
  if id and id ~= '' and G.exists(q, id) then return 'duplicate', id end
  local unknown = row[DEPENDENCIES] and A.unknown_dependency(q, row[DEPENDENCIES])
  if unknown then return 'dependency', unknown end
  if not dedup then return backlog_reason(q, row) end
  local outcome, existing = G.deduplicate(q, dedup[DEDUPLICATION.id], dedup[DEDUPLICATION.mode],
    dedup[DEDUPLICATION.ttl], now, quiet, {
      until_started = dedup[DEDUPLICATION.until_started], extend = dedup[DEDUPLICATION.extend],
      replace = dedup[DEDUPLICATION.replace],
    })
  if outcome == 'replaced' or outcome == 'staged' then return nil, existing, outcome end
  if not outcome then return backlog_reason(q, row) end
  tell_duplicate(q, now, quiet, existing, dedup[DEDUPLICATION.id])
  return outcome, existing
end

-- Add a row without a parent, dependencies or a job to wait for.
local function add_unchecked(q, now, now_text, quiet, row, id, trims, plain)
  if row[DELAY] or row[PRIORITY] or row[ORDERING] or row[JOB.rank] or row[FAIR] then
    A.full(q, now, quiet, id, row)
  else
    add_plain(q, now_text, quiet, id, row, trims, plain)
  end
end

-- behind: the job that the new one is staged behind, if any. plain: see add_plain.
local function add_row(q, now, now_text, quiet, id, row, trims, behind, plain)
  local given = row[ID] and row[ID] ~= ''
  if id == '' then
    id = next_free_id(q)
  elseif given then
    G.advance_counter(q, id)
  end
  -- With a fence, as a job that has run before: a fetch reads `ownKeys` only of those.
  local parent = row[OWN_KEYS] and { 'ownKeys', row[OWN_KEYS], 'fence', '0' }
    or row[PARENT] and A.attach_child(q, id, row[PARENT], row[OPTS])
  if row[JOB.batch] then parent = G.batches.with_fields(q, parent, row[JOB.batch]) end
  if row[DEPENDENCIES] then
    A.add_dependent(q, now, quiet, id, row, parent, behind)
  elseif parent then
    A.full(q, now, quiet, id, row, parent)
  elseif behind then
    A.full(q, now, quiet, id, row, { 'stagedBehind', behind }, true)
    G.dependencies.attach(q, id, behind, 'ignore')
  else
    add_unchecked(q, now, now_text, quiet, row, id, trims, plain)
  end
  local dedup = row[DEDUP]
  if dedup then G.record_dedup(q, dedup[DEDUPLICATION.id], id, dedup[DEDUPLICATION.ttl], now) end
  return id
end

-- Return whether all ids that callers chose, two or more, are new: one EXISTS per 500 ids instead of one each. Ids of
-- digits may also be issued to another row.
local function chosen_ids_are_new(q, rows)
  local keys, seen, J = {}, {}, q.J
  for i = 1, #rows do
    local id = rows[i][ID]
    if id and id ~= '' then
      if seen[id] or not string.find(id, '%D') then return false end
      seen[id], keys[#keys + 1] = true, J .. id
    end
  end
  if #keys < 2 then return false end
  return G.sum_of('EXISTS', keys) == 0
end

-- Return whether a row has an id, and no option that needs a check or another place than the stream. The key of its name
-- may have been added behind the end of the row.
local function has_only_id(row)
  return #row <= ATTEMPTS and row[ID] and row[ID] ~= '' and not row[DELAY] and not row[FAIR]
end

-- The same, and the id is free; then the counter of ids is moved behind it. is_new: it is known to be free.
local function takes_id(q, row, is_new)
  if not has_only_id(row) then return false end
  if is_new then return true end
  if G.exists(q, row[ID]) then return false end
  G.advance_counter(q, row[ID])
  return true
end

-- Return whether an id is issued for a row in advance (issue_ids).
local function has_issued_id(row) return not (row[ID] and row[ID] ~= '' or row[DEDUP]) end

-- Return whether a row has no id, and no option that needs a check.
local function is_unchecked(q, row)
  if row[ID] ~= '' then return false end
  if row[FAIR] then
    return #row == FAIR and not (row[ORDERING] or row[DEDUP] or row[PARENT] or row[DEPENDENCIES] or F.any_limited(q))
  end
  local o = row[ORDERING]
  return #row <= ORDERING and (not o or #o == 1 or o[GROUP.cost] <= 0 and o[GROUP.tb_capacity] <= 0)
end

-- See add_plain. id: the one that the caller chose, if any.
local function kind_of(id) return id and id ~= '' and 'chosen' or 'plain' end

-- issued: the id issued for the row; nil if it has one, or needs one only if it is added. Return its result.
local function add_if_valid(q, now, now_text, quiet, row, issued, trims, not_plain)
  local id, outcome, existing, added = issued or row[ID] or ''
  if row[ID] or row[ORDERING] or row[DEDUP] or row[PARENT] or row[DEPENDENCIES] or row[FAIR] then
    outcome, existing, added = reject_reason(q, now, quiet, row)
  end
  if outcome then return G.new.added_other({ outcome = outcome, id = existing }) end
  local plain = not not_plain and kind_of(row[ID])
  id = add_row(q, now, now_text, quiet, id, row, trims, added == 'staged' and existing, plain)
  return added and G.new.added_other({ outcome = added, id = id }) or id
end

A.issue_ids, A.next_free_id = issue_ids, next_free_id

local function add_all(q, rows, quiet, not_plain, now)
  local now_text, results = G.time_text(now), {}
  F.add_names(q, rows)
  local ids, next_auto = issue_ids(q, rows), 0
  local trimming = not quiet and G.trims_events(now, #rows) and #rows or 0
  local are_new, plain = #rows > 1 and chosen_ids_are_new(q, rows), not not_plain and 'plain'
  for i = 1, #rows do
    local row = rows[i]
    if ids and row[ID] == nil then -- only name, data and options, as in most rows: no checks needed
      next_auto = next_auto + 1
      add_plain(q, now_text, quiet, ids[next_auto], row, i == trimming, plain)
      results[i] = ids[next_auto]
    elseif ids and is_unchecked(q, row) then
      next_auto = next_auto + 1
      add_unchecked(q, now, now_text, quiet, row, ids[next_auto], i == trimming, plain)
      results[i] = ids[next_auto]
    elseif takes_id(q, row, are_new) then
      add_plain(q, now_text, quiet, row[ID], row, i == trimming, not not_plain and 'chosen')
      results[i] = row[ID]
    else
      local id
      if has_issued_id(row) then
        next_auto = next_auto + 1
        id = ids and ids[next_auto]
      end
      results[i] = add_if_valid(q, now, now_text, quiet, row, id, i == trimming, not_plain)
    end
  end
  return results
end

-- Add rows and return now, results. Also used by stage_publish.lua and schedulers_fire.lua; the former sets
-- `any_backlog`: a write that is published is published as a whole, beyond the maximum backlog of fair keys.
-- not_plain: the caller writes a field that a plain job does not have (core/fetch_plain.lua).
G.add_rows = function(q, rows, quiet, not_plain)
  local now = G.now(q)
  if #rows < 2 then return now, add_all(q, rows, quiet, not_plain, now) end
  check_places(q)
  local job = A.shared(q, now)
  job.turns = A.count_turns(q, rows)
  local results = F.adding(q, job, #rows, add_all, q, rows, quiet, not_plain, now)
  if job.tie then A.write_tie(q, job.tie) end
  return now, results
end

G.export('add', {}, function(q, request, mark)
  local refused = G.layout.check(q, request[REQUEST.layout])
  if refused then return refused end
  local now, results = G.add_rows(q, request[REQUEST.rows], request[REQUEST.quiet])
  if mark then G.mark_durable(q, mark) end
  return G.replies.add(now, results)
end)
