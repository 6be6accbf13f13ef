-- schedulers_due, schedulers_fire: add the jobs of schedulers, each due time of each scheduler once, from any number of
-- processes.
-- schedulers_due:  KEYS 1 meta   ARGV 1 packed {holder} -> packed {now, rows, wait, revision, leader}
--   row: {name, home, text, last job}: an entry that is due and not being fired by another holder.
--   last job, if it repeats after completion: {state of the job it names, 'gone' or '', when that ended or '',
--   '<when>:<id>' of the last job reported as ended or '', 1 if the queue holds no unfinished job}
--   wait: ms until more may be due   revision: as in the flags of an exchange   leader: the last holder to fire,
--   a holder that is called, or ''
-- schedulers_fire: KEYS 1 meta   ARGV 1 packed {holder, rows, quiet} -> packed {now, outcomes}
--   row: {name, home, expected, text, due, jobs, instants, tracked, named, last_job_id, overlap_text, overlap_due, runs}
--     expected: the text that is due; if the current text differs, another process was first   text: '' = delete the
--     entry
--     jobs: rows of `add`   instants: the due time of each   tracked: store the id of the job in the text (the last key
--     of its JSON)   named: store the name of the scheduler in the job
--     runs: JSON text of the last runs, without brackets, to which those of the jobs are added in the text
--     last_job_id: if that job is unfinished, no job is added, and overlap_text and overlap_due are stored; '' = none
--   outcome: 'busy', 'changed', 'overlap', or the results of `add`
-- The client computes due times. Comparing texts here ensures that a due time is not fired twice.
-- A peer's tick reads, adds and writes under its lock: while it is held, nothing is done here.
-- Bound: DUE_MAX entries per call; one page of the hashes is compared with the index.

local SCORED = G.rows.scored
local FIRING = G.rows.firing
local ADDED_OTHER = G.rows.added_other
local DUE_MAX, PAGE = 50, 50
local SCAN_MS = 5000 -- how soon changes by a peer are noticed
local BUSY_MS = 20
local CLAIM_MS, LED_MS = 500, 10000
local NEXT_SCAN = '' -- member of the index: when to read the hashes again

local M = G.schedulers

-- Put an entry written by a peer into the index by its next run; an entry that waits for a job is due now. One that is due
-- in the index is left to the client.
local function index(q, name, text, now)
  local due = tonumber(G.json(text).nextRun)
  local known = tonumber(redis.call('ZSCORE', q.schedulers_due, name))
  if due and due > 0 and due == due and due < G.BAND then
    if not known or known ~= due and known > now then redis.call('ZADD', q.schedulers_due, G.int(due), name) end
  elseif not known or known > G.TIME_MAX then
    redis.call('ZADD', q.schedulers_due, G.int(now), name)
  end
end

-- Read one page of the two hashes.
local function scan_hashes(q, now)
  local after = M.each(q, redis.call('HGET', q.meta, 'schedulesCursor') or '', PAGE, function(name, _, text, is_twice)
    if is_twice then redis.call('HDEL', q.schedulers_own, name) else index(q, name, text, now) end
  end)
  if after == '' or after == 'o0' and redis.call('EXISTS', q.schedulers_own) == 0 then
    redis.call('HDEL', q.meta, 'schedulesCursor')
    redis.call('ZADD', q.schedulers_due, G.int(now + SCAN_MS), NEXT_SCAN)
  else
    redis.call('HSET', q.meta, 'schedulesCursor', after)
    redis.call('ZADD', q.schedulers_due, G.int(now), NEXT_SCAN)
  end
end

local function named_job(q, text)
  local id = G.json(text).lastJobId
  if type(id) ~= 'string' then return '', '' end
  local state, finished_on = unpack(G.pcall('HMGET', q.J .. id, 'state', 'finishedOn'))
  if not state then return 'gone', '' end
  return state, finished_on or ''
end

-- Return the state of the job that a scheduler waits for. If a peer added the job, its id is unknown; it has surely
-- ended if the queue has no job at all.
local function last_job(q, name, text)
  if not string.find(text, '"repeatAfterComplete"', 1, true) then
    return G.new.last_run({ state = '', finished_on = '', reported = '', is_empty = 0 })
  end
  local state, ended = named_job(q, text)
  local idle = G.active_count(q) == 0
    and redis.call('EXISTS', q.scheduled, q.lifo, q.priority, q.ratelimited, q.suspended, q.ranked_above,
      q.ranked_below, q.delayed_own, q.fair_keys, q.fair_delayed) == 0
    and redis.call('XLEN', q.stream) == 0
  local reported = redis.call('HGET', q.schedulers_ended, name) or ''
  return G.new.last_run({ state = state, finished_on = ended, reported = reported, is_empty = idle and 1 or 0 })
end

local function due_rows(q, now)
  local rows = {}
  for _, name in ipairs(redis.call('ZRANGEBYSCORE', q.schedulers_due, '-inf', G.int(now), 'LIMIT', 0, DUE_MAX)) do
    local text, home = nil, 0
    if name ~= NEXT_SCAN then text, home = M.find(q, name) end
    if text then
      rows[#rows + 1] = G.new.due_scheduler({ name = name, home = home, text = text, last_job = last_job(q, name, text) })
    elseif name ~= NEXT_SCAN then
      M.delete(q, name)
    end
  end
  return rows
end

-- One holder at a time computes; a second one would only learn that it was late. Afterwards the key names the last
-- holder for a while, so that the others can wait longer.
local DONE = '^done:(.*)$'

local function claimed_for(q, holder)
  local key = q.lock_schedules
  local by = redis.call('GET', key)
  local left = by and by ~= holder and not string.match(by, DONE) and redis.call('PTTL', key) or 0
  if left > 0 and left <= CLAIM_MS then return left end -- else the clock was set back
  redis.call('SET', key, holder, 'PX', CLAIM_MS)
  return 0
end

-- Return the leader. While nothing is due, a holder that is called when schedulers change takes the place of one that is
-- not, so that it is called.
local function led_by(q, holder)
  local by = redis.call('GET', q.lock_schedules) or 'done:'
  local last = string.match(by, DONE)
  if last and G.process_channel(holder) and (last == holder or not G.process_channel(last)) then
    redis.call('SET', q.lock_schedules, 'done:' .. holder, 'PX', LED_MS)
    return holder
  end
  return last or by
end

local function wait_for_next(q, now)
  local after = redis.call('ZRANGEBYSCORE', q.schedulers_due, '(' .. G.int(now), '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
  local due = after[SCORED.score]
  local wait = due and math.max(1, tonumber(due) - now) or SCAN_MS
  return math.min(wait, SCAN_MS)
end

G.export('schedulers_due', { 'allow-oom' }, function(q, r)
  local holder, now = r.holder, G.now(q)
  G.follow_clock(q, now)
  local revision = redis.call('HGET', q.meta, 'schedulesRev')
  local flag = revision and G.schedulers_flag(revision) or 0
  local function idle(wait) return { now = now, rows = {}, wait = wait, revision = flag, leader = led_by(q, holder) } end
  if redis.call('EXISTS', q.schedulers, q.schedulers_own) == 0 then
    redis.call('UNLINK', q.schedulers_due, q.schedulers_ended)
    return idle(SCAN_MS)
  end
  local scan_at = tonumber(redis.call('ZSCORE', q.schedulers_due, NEXT_SCAN))
  if not scan_at or scan_at <= now or scan_at > now + SCAN_MS then scan_hashes(q, now) end
  local rows = due_rows(q, now)
  local wait
  if #rows == 0 then
    scan_at = tonumber(redis.call('ZSCORE', q.schedulers_due, NEXT_SCAN))
    wait = scan_at and scan_at <= now and 0 or wait_for_next(q, now)
  else
    wait = M.is_ticking(q) and BUSY_MS or claimed_for(q, holder)
    if wait == 0 then return { now = now, rows = rows, wait = 0, revision = flag, leader = holder } end
  end
  return idle(wait)
end)

local function store(q, name, home, text, due)
  if text == '' then M.delete(q, name) else M.write(q, name, home, text, due) end
end

local function is_unfinished(q, id)
  local state = id ~= '' and G.state_of(q, id)
  return state and not G.TERMINAL[state]
end

local function fire(q, row, quiet)
  local name, home, text, tracked = row[FIRING.name], row[FIRING.home], row[FIRING.text], row[FIRING.tracked]
  if M.find(q, name) ~= row[FIRING.expected] then return 'changed' end
  if is_unfinished(q, row[FIRING.last_job_id]) then
    store(q, name, home, row[FIRING.overlap_text], row[FIRING.overlap_due])
    return 'overlap'
  end
  local _, results = G.add_rows(q, row[FIRING.jobs], quiet, row[FIRING.named])
  local runs = row[FIRING.runs] ~= '' and { row[FIRING.runs] } or {}
  for i, result in ipairs(results) do
    local id, added = result, type(result) == 'string'
    if not added then id, added = result[ADDED_OTHER.id], result[ADDED_OTHER.outcome] == 'replaced' end
    if added then
      G.set(q, id, 'scheduledFor', G.int(row[FIRING.instants][i]))
      runs[#runs + 1] = '[' .. G.int(row[FIRING.instants][i]) .. ',' .. cjson.encode(id) .. ']'
      if row[FIRING.named] then G.set(q, id, 'schedulerName', name) end
    end
    if tracked and text ~= '' then text = string.sub(text, 1, -2) .. ',"lastJobId":' .. cjson.encode(id) .. '}' end
  end
  if #runs > 0 and text ~= '' then text = string.sub(text, 1, -2) .. ',"runs":[' .. table.concat(runs, ',') .. ']}' end
  store(q, name, home, text, row[FIRING.due])
  return results
end

G.export('schedulers_fire', {}, function(q, r)
  local now, outcomes, busy = G.now(q), {}, M.is_ticking(q)
  for i, row in ipairs(r.rows) do
    outcomes[i] = busy and 'busy' or fire(q, row, r.quiet)
  end
  if redis.call('GET', q.lock_schedules) == r.holder then
    redis.call('SET', q.lock_schedules, 'done:' .. r.holder, 'PX', LED_MS)
  end
  return { now = now, outcomes = outcomes }
end)
