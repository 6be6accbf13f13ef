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

G.export('check_groups', { 'no-writes' }, function(keys, args)
  local q, r = G.queue(keys[1]), cmsgpack.unpack(args[1])
  local rows = {}
  local function row(name, issued)
    local g = M.group(q, name)
    rows[#rows + 1] = { name, G.num(issued or ''), g.active, g.nextSeq, redis.call('ZCARD', g.queue) }
  end
  for _, name in ipairs(r[3]) do row(name, redis.call('HGET', q.ordering, name)) end
  if #r[3] > 0 then return cmsgpack.pack({ rows, '' }) end
  local page = redis.call('HSCAN', q.ordering, r[1] == '' and '0' or r[1], 'COUNT', r[2])
  for i = 1, #page[2], 2 do row(page[2][i], page[2][i + 1]) end
  return cmsgpack.pack({ rows, page[1] ~= '0' and page[1] or '' })
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
  local head = redis.call('ZRANGE', g.queue, 0, 0, 'WITHSCORES')
  if not head[1] then return false end
  local h = G.job_of(q, head[1])
  if h.slot == '1' then return true end
  if g.maxConcurrency > 0 and g.active >= g.maxConcurrency then return false end
  return g.nextSeq == 0 or tonumber(head[2]) <= g.nextSeq
end

-- Return the problems of the group; nil if it has changed since the caller read it. {slots = n, marks, jump, counter,
-- kick, rows}
C.check_group = function(q, r)
  local g, covered, assumed = M.group(q, r[1]), r[3], r[4]
  if g.nextSeq ~= assumed then return nil end
  local v = { g = g, rows = {} }
  local function report(kind, detail) v.rows[#v.rows + 1] = { kind, detail } end
  local certain, possible = holders(q, g, r[2])
  possible = possible + math.max(0, g.nextSeq - 1 - covered)
  if g.active < certain or g.active > possible then
    v.slots = possible
    report('slots', G.int(g.active) .. ' slots are taken by the record, ' .. G.int(possible) .. ' by the jobs')
  end
  local missing = missing_marks(g, r[5])
  if g.nextSeq == 0 and covered > 0 then
    v.missing, v.jump = {}, r[6]
    report('sequence', 'the group does not know its next sequence')
  elseif #missing > 0 then
    v.missing, v.jump = missing, missing[1] == g.nextSeq and r[6] or nil
    report('sequence', 'no job has sequence ' .. G.int(missing[1]) .. ', the next is ' .. G.int(g.nextSeq))
  end
  local counter = G.num(redis.call('HGET', q.ordering, r[1]) or '')
  local least = math.max(r[7], g.nextSeq - 1)
  if counter < least then
    v.counter = least
    report('counter', G.int(counter) .. ' sequences are issued by the counter, ' .. G.int(least) .. ' by the jobs')
  end
  if r[8] == 1 and counter == covered and is_stuck(q, g) then
    v.kick = true
    report('parked', 'parked jobs could run, but nothing will start them')
  end
  return v
end

G.export('check_group', { 'no-writes' }, function(keys, args)
  local q = G.queue(keys[1])
  local verdict = C.check_group(q, cmsgpack.unpack(args[1]))
  return cmsgpack.pack({ verdict and 0 or 1, verdict and verdict.rows or {} })
end)
