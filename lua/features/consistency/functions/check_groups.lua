-- check_groups: return a page of the groups. Changes nothing.
-- KEYS 1 meta   ARGV 1 packed {cursor, count, names}   -> packed {rows, cursor}; names: these groups instead of a page
--   row: {name, sequences issued, active, next, parked}
-- check_group: check one group against all its jobs in one step. Changes nothing.
-- KEYS 1 meta   ARGV 1 packed group   -> packed {moved 0|1, rows}; row: {kind, detail}
-- group: {name, ids, covered, assumed, gaps, first, top, calm}
--   ids: its unfinished jobs that have started or may hold a slot   covered: the caller knows every unfinished job with
--   a sequence up to this   assumed: the next sequence as the caller knows it   gaps: sequences from there to `covered`
--   that no such job has   first: the first sequence from there on that a job has, or covered + 1
--   top: the highest sequence of a job   calm: 1 = every one of its jobs is parked or active
-- kind: slots, sequence, counter, parked
-- Bound: three reads per id, one per gap; the caller sends at most 1,000 of each.

local C = G.checks
local M = G.groups

G.export('check_groups', { 'no-writes' }, function(q, r)
  local rows = {}
  local function row(name, issued)
    local g = M.group(q, name)
    rows[#rows + 1] = G.new.group({
      name = name, issued = G.num(issued), active = g.active, next_seq = g.nextSeq,
      parked = redis.call('ZCARD', g.queue),
    })
  end
  for _, name in ipairs(r.names) do row(name, redis.call('HGET', q.ordering, name)) end
  if #r.names > 0 then return { rows = rows, cursor = '' } end
  local found, after = G.scan('HSCAN', q.ordering, r.cursor, r.count)
  for i = 1, #found, 2 do row(found[i], found[i + 1]) end
  return { rows = rows, cursor = after }
end)

-- Return how many slots its jobs hold: at least, and at most.
local function holders(q, g, ids)
  local certain, possible = 0, 0
  for _, id in ipairs(ids) do
    local h = C.read(q, id)
    if h and h.groupKey == g.name and not G.TERMINAL[h.state] then
      local hold = C.hold(g, h)
      if hold > 0 then possible = possible + 1 end
      if hold == 1 then certain = certain + 1 end
    end
  end
  return certain, possible
end

local function missing_marks(g, gaps)
  local missing = {}
  for _, seq in ipairs(gaps) do
    if seq >= g.nextSeq and redis.call('HEXISTS', g.key, 'skip:' .. G.int(seq)) == 0 then missing[#missing + 1] = seq end
  end
  return missing
end

-- Return whether parked jobs could run and nothing will start them.
local function is_stuck(q, g)
  if redis.call('ZSCORE', q.ratelimited, g.name) then return false end
  local id, score = G.member_at(g.queue, 0)
  if not id then return false end
  local h = G.job_of(q, id)
  if h.slot == '1' then return true end
  if g.maxConcurrency > 0 and g.active >= g.maxConcurrency then return false end
  return g.nextSeq == 0 or tonumber(score) <= g.nextSeq
end

-- Return the problems of the group; nil if it has changed since the caller read it. {slots = n, marks, jump, counter,
-- kick, rows}
C.check_group = function(q, r)
  local g, covered, assumed = M.group(q, r.name), r.covered, r.assumed
  if g.nextSeq ~= assumed then return nil end
  local v = { g = g, rows = {} }
  local function report(kind, detail) v.rows[#v.rows + 1] = G.new.group_problem({ kind = kind, detail = detail }) end
  local certain, possible = holders(q, g, r.ids)
  possible = possible + math.max(0, g.nextSeq - 1 - covered)
  if g.active < certain or g.active > possible then
    v.slots = possible
    report('slots', G.int(g.active) .. ' slots are taken by the record, ' .. G.int(possible) .. ' by the jobs')
  end
  local missing = missing_marks(g, r.gaps)
  if g.nextSeq == 0 and covered > 0 then
    v.missing, v.jump = {}, r.first
    report('sequence', 'the group does not know its next sequence')
  elseif #missing > 0 then
    v.missing, v.jump = missing, G.first(missing) == g.nextSeq and r.first or nil
    report('sequence', 'no job has sequence ' .. G.int(G.first(missing)) .. ', the next is ' .. G.int(g.nextSeq))
  end
  local counter = G.num(redis.call('HGET', q.ordering, r.name))
  local least = math.max(r.top, g.nextSeq - 1)
  if counter < least then
    v.counter = least
    report('counter', G.int(counter) .. ' sequences are issued by the counter, ' .. G.int(least) .. ' by the jobs')
  end
  if r.calm == 1 and counter == covered and is_stuck(q, g) then
    v.kick = true
    report('parked', 'parked jobs could run, but nothing will start them')
  end
  return v
end

G.export('check_group', { 'no-writes' }, function(q, r)
  local verdict = C.check_group(q, r)
  return { moved = verdict and 0 or 1, rows = verdict and verdict.rows or {} }
end)
