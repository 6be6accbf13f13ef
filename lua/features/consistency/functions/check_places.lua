-- check_places: return one page of the members of a place, and which of them are wrong there. Changes nothing.
-- KEYS 1 meta   ARGV 1 packed {source, cursor, count}   -> packed {rows, seen, cursor}; cursor '' = the end
-- source: stream, pending, lifo, priority, scheduled, completed, failed, suspended, list-active-ids, list-heartbeats,
-- list-popped, stall-watch, dedup-expiry, waiting-children, suspects, leases, ranked-above, ranked-below, delayed-own,
-- groupq:<group>, fair-delayed, fairq:<key>
-- row: {id, entry or member, why, mark}; why: gone, foreign, ghost, state, twice, 'no entry' (pending, but no longer in
-- the stream), stale (deduplication), popped (and never activated)
-- seen: {id, entry or place} flat, of stream, pending, lists and list-popped
-- Bound: `count` members. Sets are read by SCAN commands: a member present all the time is returned at least once.
-- Lists are read with overlap, as they shift while they are read.

local STREAM_ENTRY = G.rows.stream_entry
local PENDING_ENTRY = G.rows.pending_entry
local C = G.checks
local OVERLAP = 20
local SCANS = { ['list-active-ids'] = 'SSCAN', ['stall-watch'] = 'HSCAN' }
local STEP = { SSCAN = 1, HSCAN = 2, ZSCAN = 2 }

local function add_wrong(p, id, member, reason, mark)
  p.rows[#p.rows + 1] = G.new.wrong_member({ id = id, member = member, reason = reason, mark = mark })
end

local function check(p, id, entry)
  local why, h = C.mismatch(p.q, p.source, id, entry)
  if why then add_wrong(p, id, entry, why, h and C.mark(h) or '') end
  return why, h
end

local function mark_seen(p, id, place)
  p.seen[#p.seen + 1] = id
  p.seen[#p.seen + 1] = place
end

local function stream(p, cursor, count)
  local page = redis.call('XRANGE', p.q.stream, G.after(cursor), '+', 'COUNT', count)
  if #page == 0 then return '' end
  local held = G.pending_entries(p.q, G.GROUP, page)
  for _, e in ipairs(page) do
    local entry = e[STREAM_ENTRY.id]
    local id = not held[entry] and G.entry_job(e[STREAM_ENTRY.fields])
    if id then
      local why, h = check(p, id, entry)
      -- A job whose record names this entry is found by it.
      if not why and h.eid ~= entry then mark_seen(p, id, entry) end
    end
  end
  return #page == count and page[count][STREAM_ENTRY.id] or ''
end

local function pending(p, cursor, count)
  local q = p.q
  local page = G.pcall('XPENDING', q.stream, G.GROUP, G.after(cursor), '+', count)
  for _, e in ipairs(page) do
    local entry = e[PENDING_ENTRY.id]
    local id = G.job_at(q, entry)
    if not id then
      add_wrong(p, '', entry, 'no entry', '')
    elseif not check(p, id, entry) then
      mark_seen(p, id, entry)
    end
  end
  return #page == count and page[count][PENDING_ENTRY.id] or ''
end

local function list(p, cursor, count, key)
  local from = tonumber(cursor) or 0
  local ids = redis.call('LRANGE', key, from, from + count - 1)
  for _, id in ipairs(ids) do
    if not check(p, id, '') then mark_seen(p, id, p.source) end
  end
  return #ids == count and G.int(from + count - OVERLAP) or ''
end

local function set(p, cursor, count, key)
  local command = SCANS[p.source] or 'ZSCAN'
  if command == 'SSCAN' and redis.call('TYPE', key).ok == 'zset' then return '' end -- of an older build
  local found, after = G.scan(command, key, cursor, count)
  for i = 1, #found, STEP[command] do
    local member = found[i]
    local id = G.job_of_member(p.q, key, member)
    local why = check(p, id, member)
    if p.source == 'list-popped' and (not why or why == 'popped') then mark_seen(p, id, p.source) end
  end
  return after
end

local function dedup(p, cursor, count)
  local now, found, after = G.now(p.q), G.scan('ZSCAN', p.q.dedup_expiry, cursor, count)
  for i = 1, #found, 2 do
    if C.dedup_is_stale(p.q, found[i], tonumber(found[i + 1]), now) then add_wrong(p, found[i], '', 'stale', '') end
  end
  return after
end

local READ = { stream = stream, pending = pending, lifo = list, priority = list, ['dedup-expiry'] = dedup }

G.export('check_places', { 'no-writes' }, function(q, r)
  local source, cursor, count = r.source, r.cursor, r.count
  local group = string.match(source, '^groupq:(.*)$')
  local fair = string.match(source, '^fairq:(.*)$')
  local p = { q = q, source = group and 'groupq' or fair and 'fairq' or source, rows = {}, seen = {} }
  local read = READ[source] or C.FITS[p.source] and set
  if not read then return redis.error_reply('ERR unknown place ' .. source) end
  local after = read(p, cursor, count, q.P .. source)
  return { rows = p.rows, seen = p.seen, cursor = after }
end)
