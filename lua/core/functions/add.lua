-- add: add one or many jobs in one step.
-- KEYS 1 meta   ARGV 1 packed {rows, quiet, layout, known} 2 (optional) mark   -> packed {now, results}
-- layout: number of the layout that the client knows (features/partitions/moving.lua), 0 = no partitions; may be absent.
-- known: true = add only jobs whose key has jobs here
-- mark: text that `confirm_durable` finds if the add was not lost (features/durability/durability.lua)
-- row: {name, data, opts, id|'', delay, attempts, priority, lifo 0|1, ttl, run_at, ordering, dedup, parent, rank,
-- dependencies, fair key, batch}, cut after the last one given; `false` = not given
--   ordering: {key, concurrency, rate max, rate ms, bucket capacity mtok, refill mtok/s, cost mtok}, 0 = not given
--   dedup: {id, ttl ms, mode, until_started, extend, replace}, cut after mode if the others are false
--   rank: a rank that no priority has, or the rank of a LIFO job with a priority (features/ranks/ranks.lua)
--   parent: {id, queue name}, in this queue or another (features/flows/functions/add_parent.lua)
--   batch: `P` and id of the batch that the job has joined (features/job_batches)
--   dependencies: {policy, flat queue names and ids} of jobs to wait for (features/flows/functions/depend.lua)
-- result: the new job's id, or {outcome, id}: 'duplicate' and 'skipped' with the id of the existing job, 'replaced'
-- and 'staged' with the id of the new job, 'cost' (more than the group's bucket holds: not added), 'parent' with the reason
-- ('gone' or the parent's state: not added), 'dependency' with the id of one that does not exist (not added), 'backlog'
-- with the maximum backlog of the fair key, which is reached (not added), 'moved' (with `known`: the key has no jobs
-- here, and will have none: not added)
-- errors: ERR layout (the partition has another layout; nothing was added), OOM (not allow-oom: a full server rejects new jobs)
-- Bound: the rows given.

local JOB, DEDUPLICATION, ROUTED = G.rows.new_job, G.rows.deduplication, G.rows.routed_key
local NAME, DATA, OPTS, ID, DELAY = JOB.name, JOB.data, JOB.opts, JOB.id, JOB.delay
local ATTEMPTS, PRIORITY, DEDUP, PARENT = JOB.attempts, JOB.priority, JOB.deduplication, JOB.parent
local DEPENDENCIES, FAIR = JOB.dependencies, JOB.fair
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
  local taken = 0
  for from = 1, auto, 500 do
    local chunk = {}
    for i = from, math.min(from + 499, auto) do chunk[#chunk + 1] = J .. ids[i] end
    taken = taken + redis.call('EXISTS', unpack(chunk))
  end
  return taken == 0 and ids or nil
end

-- Issue one free id in doubling steps: a counter lost behind a million jobs passes them in a few reads.
local function next_free_id(q)
  for doubled = 0, STEPS_MAX do
    local id = G.int(G.count_ids(q, 2 ^ doubled))
    if redis.call('EXISTS', q.J .. id) == 0 then return id end
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
  if quiet then return end
  if trims then
    G.emit(q.events, 'added', id, 'name', name)
  else
    G.raise_denied(redis.pcall('XADD', q.events, '*', 'event', 'added', 'jobId', id, 'name', name))
  end
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
local function reject_reason(q, now, quiet, row, group)
  local id, dedup = row[ID], row[DEDUP]
  if group and A.too_costly(q, group) then return 'cost', id or '' end
  if row[PARENT] then
    local invalid = A.invalid_parent(q, row[PARENT])
    if invalid then return 'parent', invalid end
  end
  if id and id ~= '' and redis.call('EXISTS', q.J .. id) == 1 then return 'duplicate', id end
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

-- behind: the job that the new one is staged behind, if any. plain: see add_plain.
local function add_row(q, now, now_text, quiet, id, row, group, trims, behind, plain)
  local given = row[ID] and row[ID] ~= ''
  if id == '' then
    id = next_free_id(q)
  elseif given then
    G.advance_counter(q, id)
  end
  local parent = row[PARENT] and A.attach_child(q, id, row[PARENT], row[OPTS])
  if row[JOB.batch] then parent = G.batches.with_fields(q, parent, row[JOB.batch]) end
  if row[DEPENDENCIES] then
    A.add_dependent(q, now, quiet, id, row, group, parent, behind)
  elseif parent then
    A.full(q, now, quiet, id, row, group, parent)
  elseif behind then
    A.full(q, now, quiet, id, row, group, { 'stagedBehind', behind }, true)
    G.dependencies.attach(q, id, behind, 'ignore')
  elseif row[DELAY] or row[PRIORITY] or group or row[JOB.rank] or row[FAIR] then
    A.full(q, now, quiet, id, row, group)
  else
    add_plain(q, now_text, quiet, id, row, trims, plain)
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
  for from = 1, #keys, 500 do
    if redis.call('EXISTS', unpack(keys, from, math.min(from + 499, #keys))) > 0 then return false end
  end
  return true
end

-- Return whether a row has an id, and no option that needs a check or another place than the stream. The key of its name
-- may have been added behind the end of the row.
local function has_only_id(row)
  return #row <= ATTEMPTS and row[ID] and row[ID] ~= '' and not row[DELAY] and not row[FAIR]
end

-- Return whether an id is free; then the counter of ids is moved behind it.
local function take_id(q, id)
  if redis.call('EXISTS', q.J .. id) == 1 then return false end
  G.advance_counter(q, id)
  return true
end

-- Return whether an id is issued for a row in advance (issue_ids).
local function has_issued_id(row) return not (row[ID] and row[ID] ~= '' or row[DEDUP]) end

-- See add_plain. id: the one that the caller chose, if any.
local function kind_of(id) return id and id ~= '' and 'chosen' or 'plain' end

-- issued: the id issued for the row; nil if it has one, or needs one only if it is added. Return its result.
local function add_if_valid(q, now, now_text, quiet, row, issued, trims, not_plain)
  local group = A.group_of(row, now_text)
  local id, outcome, existing, added = issued or row[ID] or ''
  if row[ID] or group or row[DEDUP] or row[PARENT] or row[DEPENDENCIES] or row[FAIR] then
    outcome, existing, added = reject_reason(q, now, quiet, row, group)
  end
  if outcome then return G.new.added_other({ outcome = outcome, id = existing }) end
  local plain = not not_plain and kind_of(row[ID])
  id = add_row(q, now, now_text, quiet, id, row, group, trims, added == 'staged' and existing, plain)
  return added and G.new.added_other({ outcome = added, id = id }) or id
end

A.issue_ids, A.next_free_id = issue_ids, next_free_id

local function add_all(q, rows, quiet, not_plain, now)
  local now_text, results = G.time_text(now), {}
  F.add_names(q, rows)
  local ids, next_auto = issue_ids(q, rows), 0
  local trimming = not quiet and G.trims_events(now, #rows) and #rows or 0
  local are_new = #rows > 1 and chosen_ids_are_new(q, rows)
  for i = 1, #rows do
    local row = rows[i]
    if ids and row[ID] == nil then -- only name, data and options, as in most rows: no checks needed
      next_auto = next_auto + 1
      add_plain(q, now_text, quiet, ids[next_auto], row, i == trimming, not not_plain and 'plain')
      results[i] = ids[next_auto]
    elseif has_only_id(row) and (are_new or take_id(q, row[ID])) then
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

-- Add rows and return now, results. Also used by stage_publish.lua, stage_once.lua and schedulers_fire.lua; the former
-- two set `any_backlog`: a write that is published is published as a whole, beyond the maximum backlog of fair keys.
-- not_plain: the caller writes a field that a plain job does not have (core/fetch_plain.lua).
G.add_rows = function(q, rows, quiet, not_plain)
  local now = G.now(q)
  if #rows < 2 then return now, add_all(q, rows, quiet, not_plain, now) end
  check_places(q)
  return now, F.adding(q, #rows, add_all, q, rows, quiet, not_plain, now)
end

-- Return the positions of the rows whose keys have jobs in this partition. A row with a shorter ttl may find that its key
-- has none any more: then the rows before it are looked at again.
local function known_rows(q, rows, now)
  local routed, found, moved, kept = {}, {}, {}, {}
  for i = 1, #rows do
    routed[i] = G.moving.routed_key(rows[i])
    found[i] = G.moving.in_use(q, routed[i], now)
    if not found[i] then moved[routed[i][ROUTED.key]] = true end
  end
  for i = 1, #rows do
    if found[i] and (not moved[routed[i][ROUTED.key]] or G.moving.in_use(q, routed[i], now)) then kept[#kept + 1] = i end
  end
  return kept
end

-- Add the rows whose keys have jobs in this partition; the others are for another one.
local function add_known(q, rows, quiet)
  local now, results = G.now(q), {}
  local kept, known = known_rows(q, rows, now), {}
  for i = 1, #kept do known[i] = rows[kept[i]] end
  local at, added = G.add_rows(q, known, quiet)
  for i = 1, #rows do results[i] = G.new.added_other({ outcome = 'moved', id = '' }) end
  for i = 1, #kept do results[kept[i]] = added[i] end
  return at, results
end

G.export('add', {}, function(q, request, mark)
  local refused = G.moving.check(q, request[REQUEST.layout])
  if refused then return refused end
  local add = request[REQUEST.known] and add_known or G.add_rows
  local now, results = add(q, request[REQUEST.rows], request[REQUEST.quiet])
  if mark then G.mark_durable(q, mark) end
  return G.replies.add(now, results)
end)
