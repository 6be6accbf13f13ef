-- Push to, read from and acknowledge entries of the job stream and its consumer group.

G.push_stream = function(q, id, name)
  return redis.call('XADD', q.stream, '*', 'jobId', id, 'name', name or '')
end

-- Push a ready job to the end of the stream. `eid` finds its entry again without a search.
G.make_waiting = function(q, id, name)
  redis.call('HSET', q.J .. id, 'state', 'waiting', 'eid', G.push_stream(q, id, name))
end

-- Acknowledge and delete entries (a list of stream entry ids, at most a few hundred). A failing deletion (a foreign
-- key in place of the stream) must not undo the work already done.
G.ack_entries = function(q, entries)
  if #entries == 0 then return end
  redis.pcall('XACK', q.stream, G.GROUP, unpack(entries))
  redis.pcall('XDEL', q.stream, unpack(entries))
end

-- Read new entries for a consumer. A missing group (first use, FLUSHALL, DEL) is created.
G.read_stream = function(q, consumer, count)
  local reply = redis.pcall('XREADGROUP', 'GROUP', G.GROUP, consumer, 'COUNT', count, 'STREAMS', q.stream, '>')
  if reply and reply.err then
    if not string.find(reply.err, 'NOGROUP', 1, true) then error(reply.err) end
    redis.call('XGROUP', 'CREATE', q.stream, G.GROUP, '0', 'MKSTREAM')
    reply = redis.call('XREADGROUP', 'GROUP', G.GROUP, consumer, 'COUNT', count, 'STREAMS', q.stream, '>')
  end
  if not reply or not reply[1] then return {} end
  return reply[1][2]
end

-- Return the job id in an entry's fields, or nil if it has none.
G.entry_job = function(fields)
  if not fields then return nil end
  if fields[1] == 'jobId' then return fields[2] end
  for i = 1, #fields - 1, 2 do
    if fields[i] == 'jobId' then return fields[i + 1] end
  end
  return nil
end

local SAME_MS_MAX = 2000

-- Return the entry of a job: the one named by its record, else one made in the millisecond in which the job was
-- added. Nil if neither exists, for example for an entry of a Node peer, which uses its own clock.
G.find_entry = function(q, id, eid, timestamp)
  if eid == '' then return nil end
  local from, count = eid or timestamp, eid and 1 or SAME_MS_MAX
  if not from then return nil end
  local found = redis.pcall('XRANGE', q.stream, from, from, 'COUNT', count)
  if found.err then return nil end
  for _, entry in ipairs(found) do
    if G.entry_job(entry[2]) == id then return entry[1] end
  end
  return nil
end

local PENDING_PAGE, PENDING_PAGES = 1000, 5

-- Return which entries of a page (a non-empty reply of XRANGE) are pending: a set of entry ids. A group may still
-- hold entries that are no longer in the stream, so there can be more of them than the page has. With very many, each
-- entry of the page is checked.
G.pending_entries = function(q, group, page)
  local pending_ids, from = {}, page[1][1]
  for _ = 1, PENDING_PAGES do
    local pending = redis.pcall('XPENDING', q.stream, group, from, page[#page][1], PENDING_PAGE)
    if pending.err then return pending_ids end
    for _, p in ipairs(pending) do pending_ids[p[1]] = true end
    if #pending < PENDING_PAGE then return pending_ids end
    from = '(' .. pending[#pending][1]
  end
  for _, entry in ipairs(page) do
    if #redis.call('XPENDING', q.stream, group, entry[1], entry[1], 1) > 0 then pending_ids[entry[1]] = true end
  end
  return pending_ids
end

-- Delete the entries of a page that are not pending, and call `each` with the job id of each.
G.delete_unclaimed = function(q, group, page, each)
  local pending_ids, free = G.pending_entries(q, group, page), {}
  for _, entry in ipairs(page) do
    if not pending_ids[entry[1]] then
      free[#free + 1] = entry[1]
      local id = G.entry_job(entry[2])
      if id then each(id) end
    end
  end
  if #free > 0 then redis.call('XDEL', q.stream, unpack(free)) end
end
